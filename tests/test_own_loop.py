"""weft.init_workers and weft.open_part: alone, with others, and when a worker of such a loop fails."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import weft
from tests.sample.cases import a_graph, spread
from tests.workers import run_workers
from weft.comm import Communicator
from weft.graph import save_graph
from weft.partitioning import make_shards, write_partition

# A loop in which worker 1 fails while worker 0 waits for it.
LOOP = """
import sys, torch, weft

parts, deed = sys.argv[1:]
with weft.init_workers(deadline_seconds=200) as comm:
    model = weft.layers.Stack([weft.layers.SAGE(6, 3)])
    graph = weft.open_part(parts, comm)
    with weft.Loader(graph, model, batch=8, epochs=9) as loader:
        for epoch in range(9):
            comm.step = f"epoch {epoch + 1}"
            for batch in loader:
                model(batch.graph, batch.x).sum().backward()
                if comm.worker == 1 and batch.step == 2:
                    if deed == "mistake":
                        raise weft.UserError("the moon is too full: wait a week")
                    if deed == "bug":
                        raise KeyError("moon")
                    sys.exit(3)
                weft.all_reduce_gradients(comm, model.parameters())
print("after the block")
"""


def parts_of(folder: Path, workers: int) -> str:
    graph = a_graph()
    write_partition(graph, spread(graph.num_nodes, workers), folder / "parts", workers, "random", 0)
    return str(folder / "parts")


def two_workers(folder: Path, code: str, *arguments: str) -> list[tuple[int, str, str]]:
    """Exit code and what it wrote to stdout and stderr of each; nobody but themselves ends them."""
    script = folder / "loop.py"
    script.write_text(code)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=os.environ | shared | {"RANK": str(worker), "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for worker in range(2)
    ]
    try:
        said = [worker.communicate(timeout=150) for worker in workers]  # shorter than the deadline
        return [(worker.returncode, *texts) for worker, texts in zip(workers, said, strict=True)]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@pytest.mark.parametrize(
    ("deed", "code", "sentence"),
    [
        ("mistake", 2, "error: the moon is too full: wait a week"),
        ("bug", 1, "error: KeyError: 'moon'"),
        ("leave", 3, ""),
    ],
)
def test_a_worker_that_fails_says_why_and_the_others_end_at_once(
    tmp_path: Path, deed: str, code: int, sentence: str
) -> None:
    first, second = two_workers(tmp_path, LOOP, parts_of(tmp_path, 2), deed)
    assert second[:2] == (code, "") and first[:2] == (1, ""), (first, second)
    lines = second[2].strip().splitlines()
    assert ("Traceback" in second[2]) == (deed == "bug") and (lines[-1] if lines else "") == sentence
    assert "error: worker 0 lost worker 1 during epoch 1: " in first[2] and "Traceback" not in first[2]


FINE = """
import torch, weft

with weft.init_workers() as comm:
    total = comm.all_reduce(torch.tensor(comm.worker + 1))
    assert total == 3 and comm.num_workers == 2
    if comm.worker == 0:
        print("sum", int(total))
assert not torch.distributed.is_initialized()
print(f"after worker {comm.worker}")
"""


def test_workers_leave_together_and_go_on(tmp_path: Path) -> None:
    first, second = two_workers(tmp_path, FINE)
    assert first == (0, "sum 3\nafter worker 0\n", "") and second == (0, "after worker 1\n", "")


def test_a_worker_that_is_alone_raises_what_was_raised() -> None:
    with pytest.raises(KeyError, match="moon"), weft.init_workers() as comm:
        assert (comm.worker, comm.num_workers) == (0, 1)
        raise KeyError("moon")
    with weft.init_workers() as comm:
        assert comm.all_reduce(torch.tensor([2.0])).item() == 2.0


def test_what_one_worker_opens(tmp_path: Path) -> None:
    graph = weft.load("synthetic:tiny")
    save_graph(graph, tmp_path / "graph")
    weft.partition(graph, 2, tmp_path / "parts", method="random")
    for data in (graph, "synthetic:tiny", tmp_path / "graph", tmp_path / "parts", str(tmp_path / "parts")):
        opened = weft.open_part(data)
        assert opened.global_ids.sort().values.tolist() == list(range(graph.num_nodes))
        assert opened.shard.num_edges == graph.num_edges and opened.comm.num_workers == 1


def own_vertices(comm: Communicator, parts: str) -> list[int]:
    return list(weft.open_part(parts, comm).global_ids.tolist())


def test_each_worker_opens_its_own_part(tmp_path: Path) -> None:
    first, second = run_workers(own_vertices, 2, parts_of(tmp_path, 2))
    assert sorted(first + second) == list(range(60)) and first and second


def test_a_loader_takes_what_was_opened() -> None:
    graph = weft.open_part(a_graph())
    given, again = ([batch.seeds.tolist() for batch in weft.Loader(data, 2, batch=8)] for data in (graph, a_graph()))
    assert given == again
    with graph.exact_pass() as view:  # the loader's minibatches are not passes of this graph
        assert view.aggregate(graph.shard.x, "sum").shape[0] == 60


def test_mistakes_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Communicator(1, 2, torch.device("cpu"), 1.0)
    with pytest.raises(weft.UserError, match="2 workers need a partition folder, and synthetic:tiny is none"):
        weft.open_part("synthetic:tiny", two)
    with pytest.raises(weft.UserError, match="2 workers need a partition folder, and a Graph is none"):
        weft.open_part(a_graph(), two)
    with pytest.raises(weft.UserError, match="the shard is that of worker 0 of 2, and this is worker 1 of 2"):
        weft.open_part(make_shards(a_graph(), spread(60, 2), 2)[0], two)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(weft.UserError, match=r"join them with weft\.init_workers"):
        weft.open_part("synthetic:tiny")
