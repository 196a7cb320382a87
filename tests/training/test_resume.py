"""A run that was stopped and resumed ends with the weights of one that was not, whatever option keeps state."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.one_run import trained
from weft.config import merge
from weft.training.generation import generations

EPOCHS, STOPPED_AFTER, EVERY = 7, 3, 3  # checkpoints: 3 (by SIGTERM, too), 6, 7
BASE: dict[str, Any] = {
    "model": {"name": "sage", "hidden": 8, "layers": 2, "norm": "batch"}, "seed": 3, "threads": 1,
    "train": {"epochs": EPOCHS, "checkpoint_every": EVERY, "trace_epochs": 0},
}  # fmt: skip
PLAIN: dict[str, Any] = {"model": {"name": "gcn", "norm": "none"}}
LONGER: dict[str, Any] = {"train": {"epochs": 12, "checkpoint_every": 4}}  # the first epochs are exact
SAMPLED: dict[str, Any] = {"sample": {"batch": 40, "fanout": [4, 3]}, "model": {"norm": "none"}}


def sampled(strategy: str, model: dict[str, Any] | None = None, **sample: Any) -> dict[str, Any]:
    return merge({**SAMPLED, "strategy": strategy}, {"sample": sample, "model": model or {}})


OPTIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "schedule and clipping": {
        "optim": {"name": "adamw", "schedule": "cosine", "warmup_epochs": 2, "clip_norm": 0.5, "weight_decay": 0.01}
    },
    "momentum and steps": {"optim": {"name": "sgd", "schedule": "step", "step_epochs": 2}},
    "attention dropout": {"model": {"name": "gat", "heads": 2, "attention_dropout": 0.3}},
    "random numbers of torch": {"model": {"name": "tests.training.own_model:noisy"}},
    "patience": {"train": {"epochs": 40, "patience": 4, "eval_every": 1}, "optim": {"lr": 0.2}},
    "chosen by loss": {"train": {"select": "loss", "eval_every": 2}},
    "never evaluated": {"train": {"eval_every": 0}},
    "bfloat16": {"train": {"precision": "bfloat16"}, "exchange": {"codec": "bf16"}},
    "restricted": {"memory": {"restrict": "always"}, "model": {"norm": "layer"}},
    "integers": {"exchange": {"codec": "int8"}},
    "differences": {**PLAIN, "exchange": {"codec": "int8", "delta": True}},
    "differences while rows travel": {
        **PLAIN, "exchange": {"codec": "int4", "delta": True, "schedule": "overlapped"}
    },
    "adaptive bits": {"strategy": "adaqp", "exchange": {"assign_cycle": 2}},
    "adaptive bits of differences": {"strategy": "adaqp", "exchange": {"assign_cycle": 2, "delta": True}},
    "block by block": {"strategy": "sar"},
    "kept as it travelled": {"strategy": "sar", "exchange": {"codec": "int8", "keep_packed": True}},
    "files": {"strategy": "sar", "memory": {"spill": "always"}},
    "minibatches": sampled("minibatch"),
    "kept aggregates": sampled("batchgnn", macrobatch=2, cache_aggregates="always", hot_mib=0.01),
    "small features": sampled("batchgnn", macrobatch=3, cache_aggregates="never", features="int8", overlap=False),
    "dependent minibatches": sampled("batchgnn", macrobatch=2, dependent=2, method="labor"),
    "shared minibatches": sampled("gsplit", {"norm": "batch"}),
    "links": merge(sampled("batchgnn"), {"train": {"task": "links"}}),
    "links over the whole graph": {"train": {"task": "links"}, "link": {"decoder": "mlp", "replace": "tails"}},
    "links of the minibatch": merge(
        sampled("batchgnn"), {"train": {"task": "links", "metric": "mrr"}, "link": {"draw": "batch", "exclude": True}}
    ),
    "numbers": {"data": "numbers", "train": {"patience": 3}},
    "learned rows": {"data": "bare", "optim": {"clip_norm": 0.5}},
    "learned rows of minibatches": merge(sampled("gsplit"), {"data": "bare"}),
    "intervals": {**PLAIN, "executor": {"name": "inline", "intervals": 3}},
    "rows of the epoch before": {
        **PLAIN, **LONGER, "executor": {"name": "inline", "intervals": 4, "staleness": 0, "plateau": 0.001}
    },
    "attention over rows of the epoch before": {
        **LONGER, "model": {"name": "gat", "heads": 2, "norm": "layer"},
        "executor": {"name": "inline", "intervals": 4, "staleness": 1},
    },
}  # fmt: skip
BETWEEN_WORKERS = {  # state of what travels: one worker has none
    "integers", "differences", "differences while rows travel", "adaptive bits", "adaptive bits of differences",
    "kept as it travelled", "shared minibatches", "bfloat16",
}  # fmt: skip
CASES = [(option, 3) for option in OPTIONS] + [(option, 1) for option in OPTIONS if option not in BETWEEN_WORKERS]
MEASURED = [name for name in OPTIONS if name.startswith("adaptive")]  # by speeds, which no two runs measure alike


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A graph in three parts, one whose vertices have no features, and one whose labels are numbers."""
    folder = tmp_path_factory.mktemp("parts")
    graph = weft.load("synthetic:tiny")
    ends = torch.arange(graph.num_nodes).repeat_interleave(graph.adjacency.degrees())
    bare = weft.from_edges(graph.adjacency.indices.long(), ends, y=graph.y, num_nodes=graph.num_nodes,
                           train_mask=graph.train_mask, val_mask=graph.val_mask)  # fmt: skip
    assert graph.y is not None
    numbers = graph.with_vertex_data(y=torch.where(graph.y > 2, torch.nan, 1e3 * graph.y + 0.5))
    graphs = {"parts": graph, "bare": bare, "numbers": replace(numbers, num_classes=0, class_names=None)}
    for name, one in graphs.items():
        weft.partition(one, 3, folder / name, method="random")
    return {name: folder / name for name in graphs}


def configured(data: dict[str, Path], workers: int, option: dict[str, Any]) -> dict[str, Any]:
    settings = merge(BASE, option)
    return {**settings, "data": str(data[settings.get("data", "parts")]), "workers": workers}


def weights(folder: Path, settings: dict[str, Any], resume: bool = False, stop_after: int | None = None) -> str:
    """The sha256 of the last and the best weights."""
    summary = trained(folder, settings, resume, stop_after)
    return str(summary["weights_sha256"] + summary["best_weights_sha256"])


@pytest.mark.parametrize(("option", "workers"), CASES)
def test_stopped_or_killed_and_resumed_to_the_same_weights(
    option: str, workers: int, data: dict[str, Path], tmp_path: Path
) -> None:
    settings = configured(data, workers, OPTIONS[option])
    run = tmp_path / "run"
    wanted = weights(run, settings)
    killed = generations(run / "checkpoints")
    shutil.rmtree(killed[-1])  # as if it had ended with SIGKILL after the checkpoint before
    (run / "summary.json").unlink()
    assert weights(run, settings, resume=True) == wanted
    if option not in MEASURED:
        weights(tmp_path / "stopped", settings, stop_after=STOPPED_AFTER - 1)
        assert weights(tmp_path / "stopped", settings, resume=True) == wanted
