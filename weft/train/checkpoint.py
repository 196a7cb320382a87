"""Checkpoints: safetensors and a manifest, two generations, the newest that verifies wins.

A generation is a folder `epoch-NNNNNN`. Weights and optimiser state, alike on every worker, are written once by
worker 0. Learned input rows, which differ, are written by their owners under their global ids, so that a run may go
on with another number of workers; each worker writes the widths that its rows travel with, where they adapt. The
manifest comes last and names every file with its sha256.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from weft.aggregate import Adaptive, GraphView
from weft.comm import Communicator
from weft.errors import UserError
from weft.graph.files import sha256_of

GENERATIONS = 2
_MANIFEST = "manifest.json"


@dataclass
class Progress:
    """Where training is, beyond weights: what early stopping and the summary need to go on."""

    epoch: int = 0
    best_epoch: int = 0
    best_value: float | None = None
    stale: int = 0  # evaluations since the best


def save_checkpoint(
    folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, progress: Progress, best: dict[str, Tensor],
    view: GraphView, notes: Mapping[str, Any] | None = None,
) -> Path:  # fmt: skip
    """Writes a generation, all workers together, and removes the ones that are too old. The manifest holds `notes`."""
    comm = view.comm
    final = folder / f"epoch-{progress.epoch:06d}"
    partial = folder / f".{final.name}.partial"
    if comm.worker == 0:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
    comm.barrier("checkpoint folder")
    replicated, own = _split(flatten_state(model, optimiser, best))
    if own:
        _save(own | {"global_ids": view.global_ids}, partial / f"rows-{comm.worker:04d}.safetensors")
    if isinstance(view.format, Adaptive):
        _save(view.format.state(), partial / _exchange_name(comm))
    if comm.worker == 0:
        _save(replicated, partial / "state.safetensors")
    comm.barrier("checkpoint files")
    if comm.worker == 0:
        files = {file.name: sha256_of(file) for file in sorted(partial.iterdir())}
        manifest = {"weft": "checkpoint", "format": 1, "progress": vars(progress), **(notes or {}), "files": files}
        with (partial / _MANIFEST).open("w") as handle:
            json.dump(manifest, handle, indent=2)
            handle.flush()
            os.fsync(handle.fileno())
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        for old in generations(folder)[:-GENERATIONS]:
            shutil.rmtree(old)
    comm.barrier("checkpoint written")
    return final


def generations(folder: Path) -> list[Path]:
    """Generations on disk, oldest first."""
    return sorted(path for path in folder.glob("epoch-*") if path.is_dir())


def newest_valid(folder: Path) -> tuple[Path, Progress]:
    """The newest generation whose every file verifies."""
    problems = []
    for path in reversed(generations(folder)):
        try:
            manifest = json.loads((path / _MANIFEST).read_text())
            for name, digest in manifest["files"].items():
                if sha256_of(path / name) != digest:
                    raise ValueError(f"{name} was altered or truncated")
            return path, Progress(**manifest["progress"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"{path.name}: {error}")
    found = "; ".join(problems) or "there is none"
    raise UserError(f"{folder} has no checkpoint that verifies ({found}): train the run first")


def load_checkpoint(
    path: Path, model: nn.Module, optimiser: torch.optim.Optimizer | None, global_ids: Tensor
) -> dict[str, Tensor]:
    """Fills model and optimiser from a verified generation and returns the best weights so far."""
    state = _read(path / "state.safetensors") | _own_rows(path, global_ids)
    best = {name.removeprefix("best."): tensor for name, tensor in state.items() if name.startswith("best.")}
    weights = {name.removeprefix("model."): tensor for name, tensor in state.items() if name.startswith("model.")}
    load_weights(model, weights, path)
    if optimiser is not None:
        _restore_optimiser(optimiser, {name: state[name] for name in state if name.startswith("optimiser.")})
    return best


def restore_exchange(path: Path, view: GraphView) -> None:
    """Goes on with the widths of rows that the run had; with other workers than then, they are chosen anew."""
    if isinstance(view.format, Adaptive) and (path / _exchange_name(view.comm)).exists():
        view.format.restore(_read(path / _exchange_name(view.comm)))


def _exchange_name(comm: Communicator) -> str:
    return f"exchange-{comm.worker:04d}-of-{comm.num_workers:04d}.safetensors"


def load_weights(model: nn.Module, weights: dict[str, Tensor], where: Path) -> None:
    expected = model.state_dict()
    wrong = [name for name, tensor in expected.items() if name not in weights or weights[name].shape != tensor.shape]
    if wrong or weights.keys() - expected.keys():
        name = wrong[0] if wrong else min(weights.keys() - expected.keys())
        raise UserError(f"{where} belongs to another model (parameter {name} does not fit): use the run's own config")
    model.load_state_dict(weights)


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


def _restore_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Tensor]) -> None:
    entries: dict[int, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        _, number, key, *_ = name.split(".")
        entries.setdefault(int(number), {})[key] = tensor
    restored: dict[str, Any] = optimiser.state_dict()
    restored["state"] = entries
    optimiser.load_state_dict(restored)


def _split(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Tensors alike on every worker, and rows that this worker owns."""
    own = {name: tensor for name, tensor in state.items() if name.endswith(".embedding")}
    return {name: tensor for name, tensor in state.items() if name not in own}, own


def _own_rows(path: Path, global_ids: Tensor) -> dict[str, Tensor]:
    """The rows of these vertices, whichever workers wrote them."""
    rows: dict[str, Tensor] = {}
    place = {int(vertex): row for row, vertex in enumerate(global_ids.tolist())} if any(path.glob("rows-*")) else {}
    filled = 0
    for file in sorted(path.glob("rows-*.safetensors")):
        stored = _read(file)
        ids = stored.pop("global_ids").tolist()
        pairs = [(here, place[vertex]) for here, vertex in enumerate(ids) if vertex in place]
        filled += len(pairs)
        source, target = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(1)
        for name, tensor in stored.items():
            into = rows.setdefault(name, tensor.new_zeros(len(global_ids), *tensor.shape[1:]))
            into[target] = tensor[source]
    if rows and filled != len(global_ids):
        raise UserError(f"{path} lacks learned rows of {len(global_ids) - filled} vertices: it is of another graph")
    return rows


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, path)
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def _read(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read ({error}): start again without --resume") from None
