"""Runs whose weights are on record, and what they come to: every strategy x three layers x one worker and three."""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import weft
from tests.one_run import trained
from weft.config import merge
from weft.kernels.build import native_module_isa

RECORD = Path(__file__).with_name("record.json")
DATA = "synthetic:tiny"
WORKERS = (1, 3)
MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"name": "gcn", "norm": "batch"},
    "sage": {"name": "sage", "norm": "layer"},
    "gat": {"name": "gat", "heads": 2, "norm": "none"},
}
SAMPLED: dict[str, Any] = {"sample": {"batch": 40, "fanout": [4, 3]}}
STRATEGIES: dict[str, dict[str, Any]] = {
    "full": {"strategy": "full"},
    "sar": {"strategy": "sar"},
    "adaqp, 4 bits": {"strategy": "adaqp", "exchange": {"codec": "int4"}},
    # Without norms, layers are computed while rows of others travel, forward and backward.
    "overlapped": {"exchange": {"schedule": "overlapped"}, "model": {"norm": "none", "layers": 3}},
    "overlapped, 4 bits": {"exchange": {"schedule": "overlapped", "codec": "int4"}, "model": {"norm": "none"}},
    "batchgnn": {**SAMPLED, "strategy": "batchgnn"},
    "gsplit": {**SAMPLED, "strategy": "gsplit"},
    # The same bits as in a pool, which tests/serverless shows.
    "dorylus": {"strategy": "dorylus", "executor": {"name": "inline"}, "model": {"norm": "layer"}},
}
BASE: dict[str, Any] = {
    "model": {"hidden": 8, "layers": 2}, "seed": 3, "threads": 1,
    "train": {"epochs": 5, "trace_epochs": 0},
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    strategy: str
    model: str
    workers: int

    def __str__(self) -> str:
        return f"{self.strategy}, {self.model}, {self.workers}"


CASES = [Case(strategy, model, workers) for strategy in STRATEGIES for model in MODELS for workers in WORKERS]


def result(case: Case, folder: Path) -> dict[str, Any]:
    """The sha256 of the weights that a case trains, and its losses."""
    parts = folder / "parts"
    weft.partition(weft.load(DATA), case.workers, parts, method="random")
    settings = merge(merge(BASE, {"model": MODELS[case.model]}), STRATEGIES[case.strategy])
    summary = trained(folder / "run", {**settings, "data": str(parts), "workers": case.workers})
    return {
        "weights": summary["weights_sha256"],
        "losses": [record["train_loss"] for record in weft.Run(folder / "run").metrics],
    }


def recorded() -> dict[str, dict[str, dict[str, Any]]]:
    """By kind of processor, and by case."""
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


@cache
def processor() -> str:
    """The instruction sets in use, and a sum over what this machine's libraries make of a few products and functions.

    Those libraries round differently from one processor to the next, also among processors of one instruction set.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    digest = hashlib.sha256()
    for rows, inner, columns in ((300, 16, 8), (40, 8, 4), (100, 32, 8), (8, 100, 32), (7, 3, 5)):
        left = torch.randn(rows, inner, generator=generator)
        right = torch.randn(inner, columns, generator=generator)
        product = left @ right
        bias = torch.nn.functional.linear(left, right.T.contiguous(), right[0])
        for value in (product, bias, left.T @ product, product.exp(), product.log_softmax(-1), product.sum(0)):
            digest.update(value.contiguous().numpy().tobytes())
    torch.set_num_threads(threads)
    return f"{native_module_isa()}, {torch.backends.cpu.get_cpu_capability().lower()}, {digest.hexdigest()[:12]}"
