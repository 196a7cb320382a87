"""How high edges rank among pairs that are none: MRR and Hits@K."""

import re

from torch import Tensor

from weft.errors import UserError

_HITS = re.compile(r"hits@([1-9]\d*)")


def is_rank_metric(name: str) -> bool:
    return name == "mrr" or _HITS.fullmatch(name) is not None


def check_rank_metric(name: str, negatives: int) -> None:
    """Refuses Hits@K where every edge would be a hit."""
    hits = _HITS.fullmatch(name)
    if hits is not None and int(hits[1]) > negatives:
        raise UserError(
            f"train.metric={name} counts every edge, since each ranks among {negatives} pairs that are none: give more "
            "(link.eval_negatives), or a smaller K"
        )


def ranks(edges: Tensor, others: Tensor) -> Tensor:
    """The rank of each edge's score [P] among its pairs' [P, K], from 1; equal scores share the mean of their ranks.

    What is no number ranks as badly as it can, so that a model that has diverged does not look perfect.
    """
    edges = edges.unsqueeze(1)
    below, equal = others < edges, others == edges
    return 1.0 + (~below).sum(1).double() - 0.5 * equal.sum(1).double()


def rank_value(metric: str, ranks: Tensor) -> Tensor:
    """What each edge adds to the metric, which is the mean over edges; float64 [P]."""
    hits = _HITS.fullmatch(metric)
    return ranks.reciprocal() if hits is None else (ranks <= int(hits[1])).double()
