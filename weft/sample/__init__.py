"""Minibatches: who is sampled, by whom, and how their rows come to where they are trained on."""

from weft.sample.batch import Batch, Hop
from weft.sample.edges import Standing
from weft.sample.plan import Macro, Minibatches, Needs, Plan, Planner, SampleConfig, fanouts_for
from weft.sample.presample import Presample, presampled
from weft.sample.sampler import Drawing, Sampler
from weft.sample.seeds import Links, Seeds, Source
from weft.sample.store import Counts, Features, Store

__all__ = [
    "Batch",
    "Counts",
    "Drawing",
    "Features",
    "Hop",
    "Links",
    "Macro",
    "Minibatches",
    "Needs",
    "Plan",
    "Planner",
    "Presample",
    "SampleConfig",
    "Sampler",
    "Seeds",
    "Source",
    "Standing",
    "Store",
    "fanouts_for",
    "presampled",
]
