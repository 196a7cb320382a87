"""Damaged files: refused in one sentence, or without effect, never a wrong answer, a traceback, a crash or a hang.

A few, most with readers of one process; with CHAOS_ROUNDS many, by every verb.
"""

import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.chaos.counting import SEED, Round, check, rounds
from tests.chaos.mutations import KINDS, World, mutate
from weft.errors import UserError
from weft.graph import load_graph, load_npz, save_graph, synthetic
from weft.partitioning import load_shard, read_owner, write_partition
from weft.report.rundata import load_runs
from weft.training.runfolder import RunFolder

ROUNDS = 12  # of every folder; 60 in all
SECONDS = 60
SHARES = 4  # of the many rounds, so that several processes may play at a time


def digest_of(tensors: dict[str, torch.Tensor | None]) -> str:
    return str(
        [(name, rows.double().sum().item(), tuple(rows.shape)) for name, rows in tensors.items() if rows is not None]
    )


def read_graph(folder: Path) -> object:
    graph = load_graph(folder)
    masks = {name: getattr(graph, name) for name in ("x", "y", "train_mask", "val_mask", "test_mask")}
    return graph.fingerprint, graph.name, graph.num_classes, digest_of(masks), read_sums(graph.x)


def read_sums(x: torch.Tensor | None) -> object:
    return None if x is None else x.numpy().tobytes()


def read_parts(folder: Path) -> object:
    shards = [load_shard(folder, worker, 2) for worker in range(2)]
    halves = [(shard.local.fingerprint, shard.remote.fingerprint, read_sums(shard.x)) for shard in shards]
    rest = [
        (shard.halo_rows.tolist(), shard.global_ids.tolist(), shard.num_classes, shard.graph_name) for shard in shards
    ]
    return halves, rest, read_owner(folder).tolist()


def read_run(folder: Path) -> object:
    run = RunFolder.open(folder)
    if run.summary() is None:  # as `weft.run.Run` says it
        raise UserError("it has not finished")
    return run.config(), run.metrics(), run.summary(), run.trace()


def read_npz(folder: Path) -> object:
    graph = load_npz(folder / "graph.npz")
    return graph.fingerprint, graph.num_nodes, read_sums(graph.x)


def read_report(folder: Path) -> object:
    """A report is made of a damaged run too, and says what is damaged."""
    (run,) = load_runs([folder])
    if run.problems:
        raise UserError(run.problems[0])
    return run.records, run.summary, run.trace


def make_run(folder: Path) -> None:
    with RunFolder.create(folder, {"seed": 1, "data": "x"}) as run:
        for epoch in (1, 2, 3):
            run.append({"epoch": epoch, "train_loss": 1 / epoch})
        run.trace_file.write_text('{"traceEvents": []}')
        run.write_summary({"train_loss": 1 / 3, "workers": 1})


def make_npz(folder: Path) -> None:
    folder.mkdir()
    edges = np.random.default_rng(0).integers(0, 30, (2, 90))
    np.savez(folder / "graph.npz", edge_index=edges, num_nodes=30, x=np.eye(30, dtype=np.float32))


GRAPH = synthetic("tiny")
FOLDERS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "graph": (lambda folder: save_graph(GRAPH, folder), read_graph),
    "parts": (lambda folder: write_partition(GRAPH, torch.arange(GRAPH.num_nodes) % 2, folder), read_parts),
    "run": (make_run, read_run),
    "report": (make_run, read_report),
    "npz": (make_npz, read_npz),
}


def outcome(read: Callable[[Path], object], folder: Path, right: object) -> str:
    """What reading gives, in a fork: whatever it does to its process, this one goes on."""
    with tempfile.TemporaryFile() as notes:
        child = os.fork()
        if child == 0:
            code = 5
            try:
                signal.alarm(SECONDS)
                code = 0 if read(folder) == right else 3
            except UserError as error:
                code = 2 if "\n" not in str(error) and len(str(error)) < 1000 else 4
            except BaseException:
                os.write(notes.fileno(), traceback.format_exc().encode())
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return "hang" if os.WTERMSIG(status) == signal.SIGALRM else f"signal {os.WTERMSIG(status)}"
        code = os.WEXITSTATUS(status)
        notes.seek(0)
        sys.stderr.write(notes.read().decode())
        return {0: "unchanged", 2: "refused", 3: "silent", 4: "not a sentence"}.get(code, "traceback")


@contextmanager
def one_thread() -> Iterator[None]:
    """A fork has none of its parent's threads, for which torch would wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", FOLDERS)
def test_damage_is_refused_or_without_effect(kind: str, tmp_path: Path) -> None:
    make, read = FOLDERS[kind]
    make(tmp_path / "whole")
    rng = random.Random(f"{kind} 0")
    names = sorted(
        str(file.relative_to(tmp_path / "whole")) for file in (tmp_path / "whole").rglob("*") if file.is_file()
    )
    with one_thread():
        right = read(tmp_path / "whole")
        counts: Counter[str] = Counter()
        for turn in range(ROUNDS):
            folder = tmp_path / str(turn)
            shutil.copytree(tmp_path / "whole", folder)
            name, damage = rng.choice(names), sorted(KINDS)[turn % len(KINDS)]
            KINDS[damage](folder / name, rng)
            found = outcome(read, folder, right)
            counts[found] += 1
            assert found in ("refused", "unchanged"), (name, damage, found)
    assert counts["refused"] >= ROUNDS // 2, counts


def test_damage_is_refused_or_without_effect_where_several_workers_read(tmp_path: Path) -> None:
    world = World.make(tmp_path, workers=2, only=("train-parts", "evaluate"))
    counts = mutate(world, number=4, seed=0, scratch=tmp_path)
    assert not world.failures, world.failures
    assert counts["refused"] >= 2, counts


@pytest.mark.skipif(not rounds(0), reason="make chaos plays it")
@pytest.mark.timeout(max(1200, 60 * rounds(0, 1 / SHARES)))
@pytest.mark.parametrize("share", range(SHARES))
def test_damage_is_refused_or_without_effect_whatever_reads(share: int, tmp_path: Path) -> None:
    world = World.make(tmp_path)
    counts = mutate(world, rounds(1, 1 / SHARES), SHARES * SEED + share, tmp_path)
    check([Round("damaged files", outcome, f"share {share}", hit="a file") for outcome in counts.elements()])
    assert not world.failures, "\n".join(world.failures)
