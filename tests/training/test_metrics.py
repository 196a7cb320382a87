"""Metrics against definitions written out pair by pair and vertex by vertex."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import UserError
from weft.training.metrics import (
    COUNT_METRICS,
    auc_inputs,
    check_metric,
    confusion_counts,
    from_counts,
    needs_scores,
    roc_auc,
)


def draw_single(seed: int, n: int = 60, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, classes, generator=generator)
    return scores, torch.randint(-1, classes, (n,), generator=generator)


def draw_multi(seed: int, n: int = 60, labels: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, labels, generator=generator)
    return scores, torch.randint(-1, 2, (n, labels), generator=generator, dtype=torch.int8)


def brute_f1(pairs: list[tuple[bool, bool]]) -> float | None:
    """F1 of (predicted, actual) pairs by precision and recall; None where there is nothing to find."""
    hits = sum(p and a for p, a in pairs)
    predicted, actual = sum(p for p, _ in pairs), sum(a for _, a in pairs)
    if predicted + actual == 0:
        return None
    if hits == 0:
        return 0.0
    precision, recall = hits / predicted, hits / actual
    return 2 * precision * recall / (precision + recall)


def brute_auc(scores: list[float], positive: list[int]) -> float:
    wins = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for (a, p), (b, q) in itertools.product(zip(scores, positive, strict=True), repeat=2)
        if p == 1 and q == 0
    ]
    return sum(wins) / len(wins)


@pytest.mark.parametrize("seed", range(5))
def test_single_label_metrics_equal_the_definition(seed: int) -> None:
    scores, y = draw_single(seed)
    rows = [(int(s.argmax()), int(t)) for s, t in zip(scores, y, strict=True) if t >= 0]
    counts = confusion_counts(scores, y)
    accuracy = sum(p == t for p, t in rows) / len(rows)
    assert from_counts("accuracy", counts) == pytest.approx(accuracy)
    assert from_counts("micro_f1", counts) == pytest.approx(accuracy)
    per_class = [brute_f1([(p == c, t == c) for p, t in rows]) for c in range(4)]
    known = [value for value in per_class if value is not None]
    assert from_counts("macro_f1", counts) == pytest.approx(sum(known) / len(known))


@pytest.mark.parametrize("seed", range(5))
def test_multi_label_metrics_equal_the_definition(seed: int) -> None:
    scores, y = draw_multi(seed)
    pairs = [[(bool(scores[i, c] > 0), bool(y[i, c])) for i in range(len(y)) if y[i, c] >= 0] for c in range(5)]
    flat = [pair for column in pairs for pair in column]
    counts = confusion_counts(scores, y)
    assert from_counts("micro_f1", counts, multi_label=True) == pytest.approx(brute_f1(flat))
    per_class = [brute_f1(column) for column in pairs]
    assert None not in per_class
    assert from_counts("macro_f1", counts, multi_label=True) == pytest.approx(sum(per_class) / 5)  # type: ignore[arg-type]
    right = sum(p == a for p, a in flat) / len(flat)
    assert from_counts("accuracy", counts, multi_label=True) == pytest.approx(right)


@given(st.integers(0, 10_000), st.lists(st.integers(0, 60), max_size=4), st.booleans())
def test_counts_do_not_depend_on_how_rows_are_spread(seed: int, cuts: list[int], multi: bool) -> None:
    scores, y = draw_multi(seed) if multi else draw_single(seed)
    edges = [0, *sorted(cuts), 60]
    parts = [confusion_counts(scores[a:b], y[a:b]) for a, b in itertools.pairwise(edges)]
    assert torch.equal(torch.stack(parts).sum(dim=0), confusion_counts(scores, y))


def test_classes_that_neither_occur_nor_are_predicted_do_not_lower_macro_f1() -> None:
    scores = torch.tensor([[3.0, 0, 0], [0, 3, 0]])
    assert from_counts("macro_f1", confusion_counts(scores, torch.tensor([0, 1]))) == 1.0


def test_nothing_counted_is_nan_and_nothing_to_find_is_perfect() -> None:
    scores = torch.zeros(3, 2)
    nothing = confusion_counts(scores, torch.full((3,), -1))
    assert all(math.isnan(from_counts(metric, nothing)) for metric in COUNT_METRICS)
    silent = confusion_counts(scores - 1, torch.zeros(3, 2, dtype=torch.int8))
    assert all(from_counts(metric, silent, multi_label=True) == 1.0 for metric in COUNT_METRICS)


@pytest.mark.parametrize("metric", COUNT_METRICS)
def test_of_one_class_every_prediction_is_right(metric: str) -> None:
    scores, y = torch.tensor([[1.0], [-1.0], [2.0], [-3.0]]), torch.tensor([0, 0, 0, -1])
    counts = confusion_counts(scores, y)
    assert counts.tolist() == [[3, 0, 0, 0]]
    assert from_counts(metric, counts) == 1.0


@given(
    st.lists(
        st.tuples(st.integers(-3, 3), st.sampled_from([-1, 0, 1])),  # few values, so that ties are many
        min_size=2,
        max_size=40,
    )
)
def test_roc_auc_equals_the_share_of_pairs_in_order(rows: list[tuple[int, int]]) -> None:
    scores, labels = torch.tensor([[float(s)] for s, _ in rows]), torch.tensor([p for _, p in rows])
    known = {p for _, p in rows if p >= 0}
    value = roc_auc(*auc_inputs(scores, labels))
    if known == {0, 1}:
        assert value == pytest.approx(brute_auc([float(s) for s, _ in rows], [p for _, p in rows]), abs=1e-12)
    else:
        assert math.isnan(value)


def test_roc_auc_of_two_logits_ranks_by_their_margin() -> None:
    scores, y = draw_single(3, n=80, classes=2)
    margin = (scores[:, 1] - scores[:, 0]).tolist()
    assert roc_auc(*auc_inputs(scores, y)) == pytest.approx(brute_auc(margin, y.tolist()))


def test_roc_auc_of_many_classes_is_the_mean_of_one_against_the_rest() -> None:
    scores, y = draw_single(4, n=70, classes=3)
    chances = scores.softmax(dim=1)
    columns = [brute_auc(chances[:, c].tolist(), [-1 if t < 0 else int(t == c) for t in y.tolist()]) for c in range(3)]
    assert roc_auc(*auc_inputs(scores, y)) == pytest.approx(sum(columns) / 3)


def test_roc_auc_of_several_labels_leaves_out_columns_of_one_kind() -> None:
    scores, y = draw_multi(5)
    y[:, 2] = 1
    columns = [brute_auc(scores[:, c].tolist(), y[:, c].tolist()) for c in (0, 1, 3, 4)]
    assert roc_auc(*auc_inputs(scores, y)) == pytest.approx(sum(columns) / 4)


def test_roc_auc_over_padded_workers_equals_one_worker() -> None:
    scores, y = draw_multi(6)
    parts = [auc_inputs(scores[a:b], y[a:b], rows=33) for a, b in ((0, 10), (10, 43), (43, 60))]
    assert all(s.shape == (33, 5) and p.dtype == torch.int8 for s, p in parts)
    gathered = roc_auc(torch.cat([s for s, _ in parts]), torch.cat([p for _, p in parts]))
    assert gathered == roc_auc(*auc_inputs(scores, y))


def test_roc_auc_of_a_diverged_model_is_nan() -> None:
    assert math.isnan(roc_auc(torch.tensor([[1.0], [math.nan]]), torch.tensor([[1], [0]])))


def test_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'accuracy'"):
        check_metric("acuracy")
    assert check_metric("roc_auc") == "roc_auc" and needs_scores("roc_auc") and not needs_scores("accuracy")
