"""How good predictions are, from numbers that workers can add up.

Accuracy and the F1 family need four counts per class: each worker calls `confusion_counts` on its own rows,
the caller sums the counts over the workers, and `from_counts` turns them into a value that does not depend on
how the rows were spread. ROC AUC needs the order of all scores: each worker calls `auc_inputs`, padded to the
longest worker so that equal shapes can be gathered, and `roc_auc` takes the rows of all of them.

Targets are as in `Graph`: int64 [N], or int8 [N, C] of 0/1 with several labels per vertex; -1 is unknown and
never counted. Of numbers, float [N, T], NaN is unknown; each worker calls `error_sums`, and `from_errors` turns
their sums into a value.
"""

import math

import torch
from torch import Tensor

from weft.errors import unknown
from weft.training.ranking import is_rank_metric

COUNT_METRICS = ("accuracy", "macro_f1", "micro_f1")
CLASS_METRICS = (*COUNT_METRICS, "roc_auc")
NUMBER_METRICS = ("rmse", "mae", "r2")
METRICS = (*CLASS_METRICS, *NUMBER_METRICS)
LOWER_IS_BETTER = ("rmse", "mae")

_TP, _FP, _FN, _TN = range(4)  # columns of the counts


def check_metric(name: str) -> str:
    """The name itself, or an error that says which is nearest."""
    if name not in METRICS and not is_rank_metric(name):
        raise unknown("metric", name, (*METRICS, "mrr", "hits@10"))
    return name


def lower_is_better(metric: str) -> bool:
    return metric in LOWER_IS_BETTER


def needs_scores(metric: str) -> bool:
    """Whether the metric is made of gathered scores (`auc_inputs`) instead of summed counts."""
    return metric == "roc_auc"


def confusion_counts(scores: Tensor, y: Tensor) -> Tensor:
    """Counts int64 [C, 4]: true positives, false positives, false negatives, true negatives of each class.

    scores: float [N, C] logits. y: int64 [N] (the predicted class is that of the highest score) or int8 [N, C] (each
    label is predicted where its score is positive).
    """
    assert scores.dim() == 2 and scores.shape[0] == y.shape[0], (scores.shape, y.shape)
    return _multi_label_counts(scores, y) if y.dim() == 2 else _single_label_counts(scores, y)


def _single_label_counts(scores: Tensor, y: Tensor) -> Tensor:
    known = y >= 0
    y, num_classes = y[known].long(), scores.shape[1]
    predicted = scores[known].argmax(dim=1)
    hits = torch.bincount(y[predicted == y], minlength=num_classes)
    predicted_count = torch.bincount(predicted, minlength=num_classes)
    actual_count = torch.bincount(y, minlength=num_classes)
    rest = y.numel() - predicted_count - actual_count + hits
    return torch.stack([hits, predicted_count - hits, actual_count - hits, rest], dim=1)


def _multi_label_counts(scores: Tensor, y: Tensor) -> Tensor:
    assert scores.shape == y.shape, (scores.shape, y.shape)
    predicted, positive, negative = scores > 0, y == 1, y == 0
    columns = [predicted & positive, predicted & negative, ~predicted & positive, ~predicted & negative]
    return torch.stack([column.sum(dim=0) for column in columns], dim=1)


def from_counts(metric: str, counts: Tensor, multi_label: bool = False) -> float:
    """The value of a metric of COUNT_METRICS from the summed counts; NaN where nothing was counted.

    accuracy: share of vertices whose class is right; with several labels per vertex, share of right labels.
    micro_f1: F1 of all labels together (equals accuracy with one label per vertex).
    macro_f1: mean of the classes' F1 over the classes that occur or are predicted.
    """
    counts = counts.to(device="cpu", dtype=torch.float64)
    if counts.numel() == 0 or counts.sum() == 0:
        return math.nan
    hits, errors = counts[:, _TP], counts[:, _FP] + counts[:, _FN]
    if metric == "accuracy":
        if multi_label:
            return float((hits + counts[:, _TN]).sum() / counts.sum())
        return float(hits.sum() / (hits + counts[:, _FN]).sum())
    present = hits + errors > 0
    if not present.any():  # no positive label and none predicted: there was nothing to find, and nothing was
        return 1.0
    if metric == "micro_f1":
        return float(2 * hits.sum() / (2 * hits + errors).sum())
    if metric == "macro_f1":
        return float((2 * hits / (2 * hits + errors))[present].mean())
    raise unknown("metric", metric, COUNT_METRICS)


def auc_inputs(scores: Tensor, y: Tensor, rows: int | None = None) -> tuple[Tensor, Tensor]:
    """What `roc_auc` needs of a worker: scores float32 [rows, K], positives int8 [rows, K] (-1 unknown).

    Two classes (or one logit) make K = 1, the margin of class 1. More classes make K = C columns of one class
    against the rest, by softmax, because raw logits of different vertices have no common zero. With several
    labels K = C. `rows` pads with unknown rows, which count nothing, so that workers can gather equal shapes.
    """
    assert scores.dim() == 2 and scores.shape[0] == y.shape[0], (scores.shape, y.shape)
    scores = scores.detach().float()
    if y.dim() == 2:
        positive = y.to(torch.int8)
    elif scores.shape[1] <= 2:
        scores = scores[:, -1:] - scores[:, :1] if scores.shape[1] == 2 else scores
        positive = y.clamp(min=-1).to(torch.int8).unsqueeze(1)
    else:
        scores = scores.softmax(dim=1)
        classes = torch.arange(scores.shape[1], device=y.device)
        positive = torch.where(y.unsqueeze(1) < 0, -1, (y.unsqueeze(1) == classes).to(torch.int8)).to(torch.int8)
    missing = 0 if rows is None else rows - scores.shape[0]
    assert missing >= 0, (rows, scores.shape)
    if missing:
        scores = torch.cat([scores, scores.new_zeros(missing, scores.shape[1])])
        positive = torch.cat([positive, positive.new_full((missing, positive.shape[1]), -1)])
    return scores.contiguous(), positive.contiguous()


def roc_auc(scores: Tensor, positive: Tensor) -> float:
    """Mean over the columns of the exact area under the ROC curve; columns of one kind only are left out.

    The area is the chance that a positive row scores above a negative one, ties counting half. NaN where no
    column has both kinds or a score is NaN.
    """
    areas = []
    for column in range(scores.shape[1]):
        known = positive[:, column] >= 0
        area = _column_auc(scores[known, column], positive[known, column] == 1)
        if area is not None:
            areas.append(area)
    return sum(areas) / len(areas) if areas else math.nan


def _column_auc(scores: Tensor, positive: Tensor) -> float | None:
    num_positive = int(positive.sum())
    num_negative = positive.numel() - num_positive
    if num_positive == 0 or num_negative == 0:
        return None
    if bool(scores.isnan().any()):
        return math.nan
    order = scores.argsort()
    _, run, run_length = torch.unique_consecutive(scores[order], return_inverse=True, return_counts=True)
    last = run_length.cumsum(0)
    # Tied rows share the mean of their ranks. Doubled, it is an integer (first + last), so the sum is exact.
    doubled_rank = (2 * last - run_length + 1)[run]
    doubled_sum = int(doubled_rank[positive[order]].sum())
    return (doubled_sum - num_positive * (num_positive + 1)) / (2 * num_positive * num_negative)


def error_sums(predicted: Tensor, y: Tensor, centre: Tensor) -> Tensor:
    """Of each target, float64 [T, 5]: known values, squares of errors, their sizes, and sums and squares of y - centre.

    predicted, y: [N, T], NaN in y where it is unknown. centre [T]: the same on all workers, and near the mean, so that
    no digits are lost when the mean is taken out of the sums.
    """
    assert predicted.shape == y.shape, (predicted.shape, y.shape)
    known = ~y.isnan()
    target = torch.where(known, y, 0.0).double()
    error = torch.where(known, predicted.double() - target, 0.0)
    apart = torch.where(known, target - centre, 0.0)
    columns = known.double(), error.square(), error.abs(), apart, apart.square()
    return torch.stack([column.sum(0) for column in columns], dim=1)


def from_errors(metric: str, sums: Tensor) -> float:
    """The value of one of NUMBER_METRICS from the sums of `error_sums`, the mean over the targets.

    A target of which nothing is known is left out, and of r2 one whose known values are all equal; NaN where none is
    left.
    """
    count, squares, sizes, apart, apart_squares = sums[sums[:, 0] > 0].double().cpu().unbind(1)
    if metric == "rmse":
        values = (squares / count).sqrt()
    elif metric == "mae":
        values = sizes / count
    elif metric == "r2":
        spread = apart_squares - apart.square() / count
        varies = spread > 1e-12 * apart_squares
        values = 1.0 - squares[varies] / spread[varies]
    else:
        raise unknown("metric", metric, NUMBER_METRICS)
    return float(values.mean()) if values.numel() else math.nan
