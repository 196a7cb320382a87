"""The choice of the checkpoint that a run resumes: one generation, with the same bytes on every worker, or none.

Worker 0 chooses the newest generation whose manifest it can read and tells the others its name and its manifest. Every
worker reads what it needs and verifies each file by that manifest, not by a manifest of its own. Then all workers
exchange what they found: where one could not read a file, or read a different one, all take the generation before, and
worker 0 says why. Where no generation is left, the run ends with a sentence that names worker and file.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from weft.aggregate import DistributedGraph
from weft.comm import Communicator, broadcast_text, gather_texts
from weft.errors import UserError
from weft.training.generation import Generation, Loaded, Progress, generations, load, manifest_text, read_generation
from weft.training.identity import refuse_other_graph, refuse_other_settings
from weft.training.restore import fill, load_weights, restore_own

UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError)


@dataclass(frozen=True)
class Resumed:
    """Where a run goes on from."""

    progress: Progress
    best: dict[str, Tensor]
    notes: Mapping[str, Any]
    executor: Mapping[str, Tensor]  # what it goes on with on this worker; empty where rows lie elsewhere than then


def go_on(
    folder: Path, model: nn.Module, optimiser: torch.optim.Optimizer, graph: DistributedGraph, run: Mapping[str, Any]
) -> Resumed | None:
    """Goes on from the checkpoint that all workers have chosen; None: there is none yet."""
    found = choose(folder, graph.comm, graph.learned_ids, run)
    if found is None:
        return None
    generation, loaded = found
    best = fill(model, optimiser, loaded, generation.path)
    as_before = restore_own(loaded, graph)
    return Resumed(generation.progress, best, generation.notes, loaded.executor if as_before else {})


def load_best(
    folder: Path, model: nn.Module, comm: Communicator, global_ids: Tensor, graph: Mapping[str, Any] | None = None
) -> None:
    """The best weights of the checkpoint that all workers have chosen, which must be of this graph, if one is given.

    global_ids: of the vertices whose learned rows are wanted.
    """
    found = choose(folder, comm, global_ids, {} if graph is None else {"graph": graph})
    if found is None:
        raise UserError(f"{folder} has no checkpoint yet: train the run first, with --resume")
    generation, loaded = found
    load_weights(model, fill(model, None, loaded, generation.path), generation.path)


def choose(
    folder: Path, comm: Communicator, global_ids: Tensor, run: Mapping[str, Any]
) -> tuple[Generation, Loaded] | None:
    """The newest generation that every worker has read whole; None where worker 0 sees none at all."""
    problems: list[str] = []
    candidates = generations(folder) if comm.worker == 0 else []
    there_are_some = bool(candidates)
    while True:
        name, text = _offer(candidates, problems, comm)
        if not name:
            break
        generation, loaded, problem = _try(folder / name, text, comm, global_ids, run)
        answers = gather_texts(
            comm, problem or f"read {loaded.digest if loaded else ''}", "what was read of a checkpoint"
        )
        bad = [f"worker {worker}: {said}" for worker, said in enumerate(answers) if not said.startswith("read ")]
        if not bad and len(set(answers)) > 1:
            bad = [f"{folder / name}: workers read different weights"]
        if not bad:
            assert generation is not None and loaded is not None
            return generation, loaded
        problems.append(f"{name}: {'; '.join(bad)}")
        if comm.worker == 0 and candidates:
            print(f"note: checkpoint {problems[-1]}; all workers turn to {candidates[-1].name}", file=sys.stderr)
    verdict = broadcast_text(comm, json.dumps([there_are_some, problems]), "that no checkpoint is left")
    there_are_some, problems = json.loads(verdict)
    if not there_are_some:
        return None
    raise UserError(
        f"{folder} has no checkpoint that every worker can read ({'; '.join(problems)}): make the files readable at "
        "the same path for every worker, or train again with --overwrite"
    )


def peek(folder: Path) -> Generation | None:
    """The newest generation whose manifest can be read, without its files: to refuse a run before any work."""
    for path in reversed(generations(folder)):
        try:
            return read_generation(path)
        except UNREADABLE:
            continue
    return None


def _offer(candidates: list[Path], problems: list[str], comm: Communicator) -> tuple[str, str]:
    """Name and manifest of the generation that worker 0 takes next, at every worker; empty where it has no more."""
    name = text = ""
    while candidates and not name:
        path = candidates.pop()
        try:
            name, text = path.name, manifest_text(path)
        except UNREADABLE as error:
            name = ""
            problems.append(f"{path.name}: worker 0: {error}")
            if candidates:
                print(f"note: checkpoint {problems[-1]}; all workers turn to {candidates[-1].name}", file=sys.stderr)
    name, text = json.loads(broadcast_text(comm, json.dumps([name, text]), "the checkpoint to go on from"))
    return name, text


def _try(
    path: Path, text: str, comm: Communicator, global_ids: Tensor, run: Mapping[str, Any]
) -> tuple[Generation | None, Loaded | None, str]:
    """What this worker has read, or why it could not. A checkpoint of another run is refused by all workers alike."""
    generation = read_generation(path, text)
    then = generation.manifest["run"]
    if "settings" in run:
        refuse_other_settings(then.get("settings", {}), run["settings"], str(path))
    if "graph" in run:
        refuse_other_graph(then.get("graph", {}), run["graph"], str(path))
    try:
        return generation, load(generation, comm, global_ids), ""
    except UNREADABLE as error:
        return None, None, f"{error}" or type(error).__name__
