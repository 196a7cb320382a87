"""Generations of checkpoints: what lies in the folder of one, and how it is read and verified.

A generation is a folder `epoch-NNNNNN`. Weights and optimiser state, alike on every worker, are in one file. Learned
input rows are written by their owners under their global ids, so that a run may go on with another number of workers.
Each worker has a file of what it alone goes on with: the state of torch's random numbers, which layers of a user's own
may draw, how its rows travel (adaptive bits, references of differences), and rows that a pipeline reads in the next
epoch. The manifest names every file with its sha256, and the graph and the settings that the run depends on.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from weft.comm import Communicator
from weft.disk.reading import MAX_JSON_BYTES, read_text
from weft.graph.files import DIGEST, manifest_digest, sha256_of

FORMAT = 2

MANIFEST, STATE = "manifest.json", "state.safetensors"

EXCHANGE, EXECUTOR = "exchange.", "executor."


@dataclass
class Progress:
    """Where training is, beyond weights: what early stopping and the summary need to go on."""

    epoch: int = 0
    best_epoch: int = 0
    best_value: float | None = None
    train_loss: float | None = None  # of the epoch


@dataclass(frozen=True)
class Generation:
    """A checkpoint as its manifest describes it; `path` is where this worker sees it."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def progress(self) -> Progress:
        return Progress(**self.manifest["progress"])

    @property
    def notes(self) -> Mapping[str, Any]:
        """What an executor wrote down."""
        notes: Mapping[str, Any] = self.manifest["notes"]
        return notes

    def read(self, name: str) -> dict[str, Tensor]:
        """A file's tensors, once its bytes are those that the manifest names."""
        file = self.path / name
        if not file.is_file():
            raise ValueError(f"{file} is missing")
        if sha256_of(file) != self.manifest["files"][name]:
            raise ValueError(f"{file} was altered or truncated")
        with safe_open(file, framework="pt") as opened:
            return {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 (not a dict)


@dataclass(frozen=True)
class Loaded:
    """What one worker has read of a generation."""

    replicated: dict[str, Tensor]
    rows: dict[str, Tensor]  # of own vertices
    own: dict[str, Tensor]  # what this worker alone goes on with; empty where others wrote

    @property
    def executor(self) -> dict[str, Tensor]:
        """What an executor goes on with on this worker."""
        return under(EXECUTOR, self.own)

    @property
    def digest(self) -> str:
        """Of what every worker must have read alike."""
        digest = sha256()
        for name in sorted(self.replicated):
            digest.update(name.encode())
            digest.update(self.replicated[name].contiguous().view(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


def generations(folder: Path) -> list[Path]:
    """Generations on disk, oldest first."""
    return sorted(path for path in folder.glob("epoch-*") if path.is_dir())


def read_generation(path: Path, text: str | None = None) -> Generation:
    """A generation by its manifest; `text`: the manifest as worker 0 has read it."""
    manifest = json.loads(_read_manifest(path) if text is None else text)
    if not isinstance(manifest, dict) or manifest.get("weft") != "checkpoint" or manifest.get("format") != FORMAT:
        raise ValueError(f"{path / MANIFEST} is of another version of weft, or of something else")
    missing = {"progress", "run", "notes", "files"} - manifest.keys()
    if missing or STATE not in manifest["files"]:
        raise ValueError(f"{path / MANIFEST} is damaged")
    if manifest.get(DIGEST) != manifest_digest(manifest):
        raise ValueError(f"{path / MANIFEST} was altered")
    generation = Generation(path, manifest)
    if not isinstance(generation.progress.epoch, int) or not isinstance(manifest["run"], dict):
        raise ValueError(f"{path / MANIFEST} is damaged")
    return generation


def manifest_text(path: Path) -> str:
    """A manifest that can be read as one."""
    text = _read_manifest(path)
    read_generation(path, text)
    return text


def _read_manifest(path: Path) -> str:
    return read_text(path / MANIFEST, MAX_JSON_BYTES, "train again")


def own_name(comm: Communicator) -> str:
    return f"worker-{comm.worker:04d}-of-{comm.num_workers:04d}.safetensors"


def load(generation: Generation, comm: Communicator, global_ids: Tensor) -> Loaded:
    """What this worker needs of a generation, verified."""
    replicated = generation.read(STATE)
    own = generation.read(own_name(comm)) if own_name(comm) in generation.manifest["files"] else {}
    return Loaded(replicated, _rows_of(generation, global_ids), own)


def _rows_of(generation: Generation, global_ids: Tensor) -> dict[str, Tensor]:
    """The learned rows of these vertices, whichever workers wrote them."""
    rows: dict[str, Tensor] = {}
    files = sorted(name for name in generation.manifest["files"] if name.startswith("rows-"))
    place = {int(vertex): row for row, vertex in enumerate(global_ids.tolist())} if files else {}
    filled = 0
    for name in files:
        stored = generation.read(name)
        ids = stored.pop("global_ids").tolist()
        pairs = [(here, place[vertex]) for here, vertex in enumerate(ids) if vertex in place]
        filled += len(pairs)
        source, target = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(1)
        for key, tensor in stored.items():
            into = rows.setdefault(key, tensor.new_zeros(len(global_ids), *tensor.shape[1:]))
            into[target] = tensor[source]
    if rows and filled != len(global_ids):
        raise ValueError(f"{generation.path} lacks learned rows of {len(global_ids) - filled} vertices")
    return rows


def under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
