"""Numbers are learned: losses and metrics against numpy, the same for any number of workers, in every plan."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import weft
from tests.one_run import trained
from tests.workers import run_workers
from weft.comm import Communicator
from weft.config import merge
from weft.export import write_outputs
from weft.graph import Graph, random_split
from weft.report.page import write_report
from weft.training.metrics import error_sums, from_errors
from weft.training.numbers import Numbers, TargetScale
from weft.training.settings import TrainConfig

NAN = math.nan


def drawn(rows: int = 50, targets: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and targets far from 0, some unknown; the last target is hardly ever known."""
    rng = np.random.default_rng(0)
    y = 1e4 + rng.normal(size=(rows, targets)) * np.arange(1, targets + 1)
    predicted = y + rng.normal(size=y.shape)
    y[rng.random(y.shape) < 0.3] = NAN
    y[2:, -1] = NAN
    return predicted, y


def by_numpy(metric: str, predicted: np.ndarray, y: np.ndarray) -> float:
    """The mean over targets, each over its own known rows, as scikit-learn's uniform average."""
    values = []
    for target in range(y.shape[1]):
        has = ~np.isnan(y[:, target])
        error, known = predicted[has, target] - y[has, target], y[has, target]
        spread = ((known - known.mean()) ** 2).sum()
        values.append(
            {
                "rmse": np.sqrt((error**2).mean()),
                "mae": np.abs(error).mean(),
                "r2": 1 - (error**2).sum() / spread if spread else NAN,
            }[metric]
        )
    return float(np.nanmean(values))


@pytest.mark.parametrize("metric", ["rmse", "mae", "r2"])
def test_metrics_equal_numpys_however_rows_are_spread(metric: str) -> None:
    predicted, y = drawn()
    centre = torch.full((3,), 9_999.0, dtype=torch.float64)
    pieces = [
        error_sums(torch.from_numpy(predicted[part]), torch.from_numpy(y[part]), centre)
        for part in (slice(0, 7), slice(7, 7), slice(7, 50))
    ]
    assert from_errors(metric, sum(pieces, torch.zeros(3, 5))) == pytest.approx(by_numpy(metric, predicted, y))
    one = error_sums(torch.ones(4, 1), torch.full((4, 1), 7.0), torch.zeros(1))
    assert math.isnan(from_errors("r2", one)) and from_errors("mae", one) == 6.0
    assert math.isnan(from_errors(metric, torch.zeros(2, 5)))


def shares(comm: Communicator, y: torch.Tensor, out: torch.Tensor, config: TrainConfig) -> Any:
    """A worker's share of the loss and its gradient, and the metrics of all."""
    mine = torch.arange(len(y))[comm.worker :: comm.num_workers]
    targets = Numbers(y[mine], config, nn.Identity(), comm, "g")
    rows = (torch.arange(len(mine)) % 3 != 1).nonzero().squeeze(1)
    targets.fit(rows)
    outputs = out[mine].requires_grad_()
    share = targets.loss(rows)(outputs)
    share.backward()  # type: ignore[no-untyped-call]
    values = targets.score(out[mine], {"train": torch.ones(len(mine), dtype=torch.bool)})
    return share.detach(), mine, outputs.grad, values["train"], targets.scale.mean, targets.scale.std


@pytest.mark.parametrize("loss", ["mse", "mae"])
@pytest.mark.parametrize("workers", [1, 3])
def test_loss_scale_and_gradient_are_those_of_all_rows(workers: int, loss: str) -> None:
    _, targets = drawn()
    y = torch.from_numpy(targets).float()
    out = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    config = TrainConfig(loss=loss, metric="mae")  # type: ignore[arg-type]
    answers = run_workers(shares, workers, y, out, config)
    learned = np.full((50, 3), NAN)
    for _, mine, *_ in answers:
        rows = mine[torch.arange(len(mine)) % 3 != 1]
        learned[rows] = y[rows].double().numpy()
    mean, std = np.nanmean(learned, 0), np.nanstd(learned, 0)
    std = np.where(std > 0, std, 1.0)
    z = torch.from_numpy((learned - mean) / std)
    has = ~z.isnan()
    plain = out.clone().requires_grad_()
    difference = plain[has] - z[has]
    wanted = difference.square().mean() if loss == "mse" else difference.abs().mean()
    wanted.backward()  # type: ignore[no-untyped-call]
    assert plain.grad is not None
    assert float(sum(answer[0] for answer in answers)) == pytest.approx(float(wanted.detach()), rel=1e-9)
    for _, mine, grad, value, found_mean, found_std in answers:
        torch.testing.assert_close(grad, plain.grad[mine], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found_mean.numpy(), mean, rtol=1e-12)
        np.testing.assert_allclose(found_std.numpy(), std, rtol=1e-9)
        assert value == pytest.approx(by_numpy("mae", out.numpy() * std + mean, y.double().numpy()), rel=1e-6)


def test_a_target_without_spread_keeps_its_scale() -> None:
    scale = TargetScale(1)
    scale.fit(torch.full((3, 1), 5.0), Communicator.alone())
    assert float(scale.std) == 1.0 and float(scale(torch.zeros(1, 1))) == 5.0


def a_graph(targets: int = 1) -> Graph:
    """Incomes, as a function of features of a vertex and its neighbours; a tenth of them is not known."""
    tiny = weft.load("synthetic:tiny")
    assert tiny.x is not None
    rows = torch.arange(tiny.num_nodes).repeat_interleave(tiny.adjacency.degrees())
    total = torch.zeros_like(tiny.x).index_add_(0, rows, tiny.x[tiny.adjacency.indices.long()])
    mean = total / tiny.adjacency.degrees().clamp(min=1)[:, None]
    y = 50_000 + 9_000 * (tiny.x[:, :targets] + mean[:, 1 : 1 + targets])
    y[::10] = NAN
    names = ("income", "rent") if targets == 2 else None
    graph = weft.from_edges(
        tiny.adjacency.indices.long(), rows, x=tiny.x, y=y, num_nodes=tiny.num_nodes, class_names=names, name="incomes"
    )
    return random_split(graph, 0.6, 0.2)


BASE: dict[str, Any] = {
    "model": {"name": "sage", "hidden": 16, "layers": 2, "dropout": 0.0, "norm": "none"}, "seed": 3, "threads": 1,
    "optim": {"lr": 0.02}, "train": {"epochs": 60, "trace_epochs": 0}, "sample": {"batch": 64, "fanout": [-1, -1]},
}  # fmt: skip


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    weft.partition(a_graph(), 3, folder / "parts", method="random")
    return folder / "parts"


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("strategy", ["full", "sar", "adaqp", "minibatch", "batchgnn", "gsplit"])
def test_numbers_are_learned_under_every_strategy(parts: Path, tmp_path: Path, strategy: str, workers: int) -> None:
    extra = {"exchange": {"codec": "int8"}} if strategy == "adaqp" else {}
    sampled = strategy in ("minibatch", "batchgnn", "gsplit")
    more: dict[str, Any] = {"train": {"epochs": 12, "metric": "r2"}} if sampled else {"train": {"metric": "r2"}}
    settings = merge(merge(BASE, more), {"data": str(parts), "workers": workers, "strategy": strategy, **extra})
    summary = trained(tmp_path / "run", settings)
    assert summary["metric"] == "r2" and summary["test_r2"] > 0.8


def test_workers_learn_the_same(parts: Path, tmp_path: Path) -> None:
    settings = merge(BASE, {"data": str(parts), "train": {"epochs": 5, "precision": "float64", "loss": "mae"}})
    losses = []
    for workers in (1, 3):
        trained(tmp_path / f"{workers}", {**settings, "workers": workers})
        losses.append([(r["train_loss"], r["val_rmse"]) for r in weft.Run(tmp_path / f"{workers}").metrics])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9)


@pytest.mark.parametrize(("workers", "targets"), [(1, 2), (3, 2), (3, 1)])
def test_metrics_are_numpys_on_what_is_exported(tmp_path: Path, workers: int, targets: int) -> None:
    graph = a_graph(targets)
    run = weft.train(
        graph, BASE["model"], workers=workers, run=tmp_path / "run", quiet=True, threads=1,
        train={"epochs": 8, "metric": "rmse"}, optim={"lr": 0.02},
    )  # fmt: skip
    assert graph.y is not None
    y = graph.y.double().numpy().reshape(graph.num_nodes, targets)
    write_outputs(run.path, tmp_path / "out.parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    endings = [""] if targets == 1 else ["_income", "_rent"]
    columns = [f"{kind}{ending}" for kind in ("prediction", "target") for ending in endings]
    assert table.column_names == ["id", *columns, "split"]
    predicted = np.stack([table.column(f"prediction{ending}").to_numpy() for ending in endings], 1)
    written = np.stack([table.column(f"target{ending}").to_numpy() for ending in endings], 1)
    np.testing.assert_array_equal(written, y)  # NaN where it is unknown
    assert table.column(columns[targets]).null_count == np.isnan(y[:, 0]).sum()
    values = run.evaluate()
    for split, mask in graph.masks.items():
        wanted = by_numpy("rmse", predicted[mask.numpy()].astype(np.float64), y[mask.numpy()])
        assert values[f"{split}_rmse"] == pytest.approx(wanted, rel=1e-5)
        assert values[f"{split}_rmse"] == pytest.approx(run.summary[f"{split}_rmse"], rel=1e-5)
    assert 1e3 < wanted < 1e5  # in the unit of what is predicted
    curve = {record["epoch"]: record["val_rmse"] for record in run.metrics}
    assert curve[run.summary["best_epoch"]] == min(curve.values())
    write_report([run.path], tmp_path / "report.html")
    assert "RMSE" in (tmp_path / "report.html").read_text()


def test_patience_waits_for_a_lower_error(tmp_path: Path) -> None:
    more = {"train": {"epochs": 40, "patience": 3}, "optim": {"lr": 3.0}}
    settings = merge(merge(BASE, more), {"data": "incomes"})
    run = weft.train(a_graph(), run=tmp_path / "run", quiet=True, **{k: v for k, v in settings.items() if k != "data"})
    values = [record["val_rmse"] for record in run.metrics]
    best = run.summary["best_epoch"]
    assert values[best - 1] == min(values) and len(values) in (best + 3, 40)
    assert run.summary["val_rmse"] == pytest.approx(min(values), rel=1e-6)


def test_raw_numbers_are_learned_where_that_is_asked_for(tmp_path: Path) -> None:
    graph = a_graph()
    run = weft.train(
        graph, BASE["model"], run=tmp_path / "run", quiet=True, train={"epochs": 1, "standardise": False}, threads=1
    )
    assert run.metrics[0]["train_loss"] > 1e8


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"metric": "accuracy"}, "train.metric=accuracy is not for numbers"),
        ({"class_weights": "balanced"}, "train.class_weights=balanced weighs classes"),
    ],
)
def test_what_is_for_classes_is_refused_of_numbers(tmp_path: Path, train: dict[str, Any], message: str) -> None:
    with pytest.raises(weft.UserError, match=message):
        weft.train(a_graph(), BASE["model"], run=tmp_path / "run", quiet=True, train={"epochs": 1, **train})
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"metric": "rmse"}, "train.metric=rmse is not for classes"),
        ({"loss": "mse"}, "train.loss=mse is for numbers"),
        ({"metric": "rmsse"}, "did you mean 'rmse'"),
    ],
)
def test_what_is_for_numbers_is_refused_of_classes(tmp_path: Path, train: dict[str, Any], message: str) -> None:
    with pytest.raises(weft.UserError, match=message):
        weft.train("synthetic:tiny", run=tmp_path / "run", quiet=True, train={"epochs": 1, **train})


def test_functions_do_not_learn_numbers(tmp_path: Path) -> None:
    with pytest.raises(weft.UserError, match="computes losses of classes"):
        weft.train(
            a_graph(), strategy="dorylus", executor={"name": "inline", "intervals": 3}, run=tmp_path / "run", quiet=True
        )
