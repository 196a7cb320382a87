"""Writing checkpoints: safetensors and a manifest, two generations.

Worker 0 writes what is alike on every worker, and each worker what it alone has (`weft.training.generation` lists the
files). The manifest comes last, so that a generation without one is none. How workers choose a generation to go on from
is in `weft.training.resume`.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from weft.aggregate import DistributedGraph
from weft.comm import gather_texts
from weft.disk import explained
from weft.errors import UserError
from weft.graph.files import DIGEST, manifest_digest, sha256_of
from weft.training.generation import EXCHANGE, EXECUTOR, FORMAT, MANIFEST, STATE, Progress, generations, own_name
from weft.training.restore import placement

GENERATIONS = 2

_OWN_ROWS = ("model.embedding", "best.embedding")


def save_checkpoint(
    folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, progress: Progress, best: dict[str, Tensor],
    graph: DistributedGraph, run: Mapping[str, Any], notes: Mapping[str, Any] | None = None,
    executor: Mapping[str, Tensor] | None = None,
) -> Path:  # fmt: skip
    """Writes a generation and removes those that it replaces. A collective call.

    `run` is what the run depends on: its graph and settings. `notes` and `executor` are what a pipeline goes
    on with: alike on all workers, and this worker's own.
    """
    comm = graph.comm
    final = folder / f"epoch-{progress.epoch:06d}"
    partial = folder / f".{final.name}.partial"
    replicated, rows = _split(flatten_state(model, optimiser, best))
    pipeline = {f"{EXECUTOR}{name}": tensor for name, tensor in (executor or {}).items()}
    mine: dict[str, dict[str, Tensor]] = {own_name(comm): own_state(graph) | pipeline}
    if rows:
        mine[f"rows-{comm.worker:04d}.safetensors"] = rows | {"global_ids": graph.learned_ids}
    if comm.worker == 0:
        mine[STATE] = replicated
    try:
        if comm.worker == 0:
            folder.mkdir(parents=True, exist_ok=True)
            sweep(folder)
            partial.mkdir()
        comm.barrier("checkpoint folder")
        written = {name: _save(tensors, partial / name) for name, tensors in mine.items()}
        files = [json.loads(text) for text in gather_texts(comm, json.dumps(written), "checkpoint files")]
        if comm.worker == 0:
            head = {"weft": "checkpoint", "format": FORMAT, "progress": vars(progress), "run": run}
            _write_manifest(partial, {**head, "notes": notes or {}, "files": _seen(partial, files)})
            _swap(folder, partial, final, progress.epoch)
    except (OSError, SafetensorError) as error:
        if comm.worker == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise UserError(
            f"worker {comm.worker} cannot write the checkpoint of epoch {progress.epoch} (--resume goes on from "
            f"the one before): {explained(error, folder) or error}"
        ) from error
    comm.barrier("checkpoint written")
    return final


def sweep(folder: Path) -> None:
    """Removes generations that were being written when their worker ended."""
    for left in folder.glob(".epoch-*.partial"):
        shutil.rmtree(left, ignore_errors=True)


def own_state(graph: DistributedGraph) -> dict[str, Tensor]:
    """What this worker alone goes on with, and which rows it holds then."""
    state = {"random": torch.get_rng_state(), "placement": placement(graph)}
    if graph.comm.device.type == "cuda":
        state["random.cuda"] = torch.cuda.get_rng_state(graph.comm.device)
    state |= {f"{EXCHANGE}{name}": tensor for name, tensor in graph.format.state().items()}
    return state


def _seen(partial: Path, written: list[dict[str, tuple[int, str]]]) -> dict[str, str]:
    """The digest of every file, as its writer took it; worker 0 must see them all."""
    digests = {}
    for worker, files in enumerate(written):
        for name, (size, digest) in files.items():
            file = partial / name
            if not file.is_file() or file.stat().st_size != size:
                raise UserError(
                    f"worker 0 does not see {file}, which worker {worker} has written: the run folder must lie on a "
                    "file system that all hosts share"
                )
            digests[name] = digest
    return digests


def _write_manifest(partial: Path, manifest: Mapping[str, Any]) -> None:
    plain = json.loads(json.dumps(manifest))
    with (partial / MANIFEST).open("w") as handle:
        json.dump({**plain, DIGEST: manifest_digest(plain)}, handle, indent=2)
        handle.flush()
        os.fsync(handle.fileno())


def _swap(folder: Path, partial: Path, final: Path, epoch: int) -> None:
    """The generation under its name; older ones go, and later ones, which are of epochs that are being done again."""
    if final.exists():
        final.rename(final.with_name(f".{final.name}.old.partial"))
    partial.rename(final)
    found = generations(folder)
    kept = [path for path in found if _epoch_of(path) <= epoch][-GENERATIONS:]
    for old in set(found) - set(kept):
        shutil.rmtree(old)
    sweep(folder)


def _epoch_of(generation: Path) -> int:
    digits = generation.name.removeprefix("epoch-")
    return int(digits) if digits.isdigit() else 0


def _save(tensors: dict[str, Tensor], path: Path) -> tuple[int, str]:
    """Size and digest of what was written."""
    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, path)
    with path.open("rb") as handle:
        os.fsync(handle.fileno())
    return path.stat().st_size, sha256_of(path)


def flatten_state(model: nn.Module, optimiser: torch.optim.Optimizer, best: dict[str, Tensor]) -> dict[str, Tensor]:
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    state |= {f"best.{name}": tensor for name, tensor in best.items()}
    for number, (name, parameter) in enumerate(_parameters_in_order(optimiser, model)):
        for key, value in optimiser.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                suffix = ".embedding" if name == "embedding" and value.dim() else ""
                state[f"optimiser.{number}.{key}{suffix}"] = value
    return state


def _parameters_in_order(optimiser: torch.optim.Optimizer, model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [(names[id(p)], p) for group in optimiser.param_groups for p in group["params"]]


def _split(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Tensors alike on every worker, and rows that this worker owns."""

    def owned(name: str) -> bool:
        return name in _OWN_ROWS or (name.startswith("optimiser.") and name.endswith(".embedding"))

    own = {name: tensor for name, tensor in state.items() if owned(name)}
    return {name: tensor for name, tensor in state.items() if name not in own}, own
