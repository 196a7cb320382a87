"""From the columns of a table to features: statistics of training vertices, decisions, and rows made by them.

Two passes over the table, batch by batch: `fit` gathers statistics and decides about each column, `prepared_batches`
makes float32 rows. The decisions are a `Preparation`, which graph and partition folders keep.
"""

from weft.graph.preparation.apply import prepare_array, prepare_batch, prepared_batches, prepared_features
from weft.graph.preparation.fit import FeatureTable, describe_array, fit
from weft.graph.preparation.schema import Decision, FeatureChoices, Preparation, read_preparation

__all__ = [
    "Decision",
    "FeatureChoices",
    "FeatureTable",
    "Preparation",
    "describe_array",
    "fit",
    "prepare_array",
    "prepare_batch",
    "prepared_batches",
    "prepared_features",
    "read_preparation",
]
