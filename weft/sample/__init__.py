"""Minibatches in a line: source -> sampler -> fetcher -> loader. Which seeds, their neighbourhoods, rows, in order."""

from weft.sample.batch import Batch, Hop
from weft.sample.book import PartitionBook
from weft.sample.config import Needs, Plan, SampleConfig, drawing_for, fanouts_for
from weft.sample.fetcher import CachedAggregate, Fetcher, Inputs, Macrobatch
from weft.sample.loader import MacrobatchLoader
from weft.sample.minibatch import Minibatch, enter
from weft.sample.presample import Presample, presampled
from weft.sample.sampler import Drawing, Sampler
from weft.sample.source import LinkSource, Source, VertexSource
from weft.sample.split import SharedSampler, Sharing
from weft.sample.store import Counts, Features, Store
from weft.sample.trial import Trial
from weft.sample.typedstore import keep_rows

__all__ = [
    "Batch",
    "CachedAggregate",
    "Counts",
    "Drawing",
    "Features",
    "Fetcher",
    "Hop",
    "Inputs",
    "LinkSource",
    "Macrobatch",
    "MacrobatchLoader",
    "Minibatch",
    "Needs",
    "PartitionBook",
    "Plan",
    "Presample",
    "SampleConfig",
    "Sampler",
    "SharedSampler",
    "Sharing",
    "Source",
    "Store",
    "Trial",
    "VertexSource",
    "drawing_for",
    "enter",
    "fanouts_for",
    "keep_rows",
    "presampled",
]
