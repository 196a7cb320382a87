"""DistDGL and weft on the same minibatches over slow links.

    python -m benchmarks.distdgl [--quick] [--only "100 Mb/s"] [--json FILE]

The workload of `benchmarks.macrobatch`: 4 network namespaces (root and iproute2 needed) with links shaped by `tc tbf`,
a products-like graph in 4 parts, SAGE of 3 layers of 256, fan-out 15, 10, 5 from the seeds on, 16 steps an epoch of
2048 seeds over all workers. Both sides have the same parts, seed vertices, batches and threads. DistDGL runs one server
and one trainer on each host, gradients by DDP over gloo, once without and once with a sampler process beside the
trainer; every host has a /dev/shm of its own, by which server and trainer share their part. Huge pages for every side;
the first epoch is not counted.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.blocks import BlockLayers, dgl_graph, load_dgl
from benchmarks.harness import Bench, parse, tuned_allocator
from benchmarks.hosts import Hosts, ask, hosts_on_a_switch, start_workers
from benchmarks.macrobatch import BATCH, FANOUT, MODEL, STEPS, WORKERS, cases
from weft.graph import Graph, open_graph
from weft.partitioning import load_shard
from weft.prepare import partition

HIDDEN, RATE = 256, 0.003
BANDWIDTHS: tuple[float | None, ...] = (100.0, 300.0, None)  # Mb/s; None: as fast as the machine can
NAME = "graph"  # what DistDGL calls it
SERVER_PORT, RENDEZVOUS_PORT = 30050, 29401
SAMPLERS = (0, 1)  # processes of DistDGL that sample beside each trainer
OURS = ("K = 1, nothing ahead", "K auto, aggregates auto")
BAR = 3.0


# -- DistDGL's files -------------------------------------------------------------------------------------------


def same_parts(parts: Path, graph: Graph, batch: int) -> tuple[Tensor, Tensor]:
    """Who owns each vertex, and which vertices are seeds, as weft's workers have it: int64 [N], bool [N]."""
    owner, seeds = torch.empty(graph.num_nodes, dtype=torch.int64), torch.zeros(graph.num_nodes, dtype=torch.bool)
    rows = []
    for worker in range(WORKERS):
        shard = load_shard(parts, worker, WORKERS)
        assert shard.train_mask is not None
        owner[shard.global_ids] = worker
        rows.append(shard.global_ids[shard.train_mask])
    wanted, found = STEPS * batch, sum(row.numel() for row in rows)
    shares = [row.numel() * wanted // found for row in rows]
    shares[0] += wanted - sum(shares)
    for row, share in zip(rows, shares, strict=True):
        assert share <= row.numel(), "the graph has too few training vertices"
        seeds[row[:share]] = True
    return owner, seeds


def write_parts(graph: Graph, owner: Tensor, seeds: Tensor, folder: Path) -> None:
    """What `dgl.distributed.partition_graph` writes, which itself takes no owners: a halo of one hop, ids by part."""
    dgl = load_dgl()
    assert graph.x is not None and graph.y is not None
    parts, _, _ = dgl.partition.partition_graph_with_halo(dgl_graph(graph), owner, 1, reshuffle=True)
    described: dict[str, Any] = {
        "graph_name": NAME,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "part_method": "given",
        "num_parts": WORKERS,
        "halo_hops": 1,
        "ntypes": {"_N": 0},
        "etypes": {"_N:_E:_N": 0},
        "node_map": {"_N": []},
        "edge_map": {"_N:_E:_N": []},
    }
    for number, part in sorted(parts.items()):
        inner = part.ndata["inner_node"].bool()
        for kind, ids in (
            ("node_map", part.ndata[dgl.NID][inner]),
            ("edge_map", part.edata[dgl.EID][part.edata["inner_edge"].bool()]),
        ):
            first, last = int(ids.min()), int(ids.max())
            assert last + 1 - first == ids.numel(), "ids of a part are not consecutive"
            next(iter(described[kind].values())).append([first, last + 1])
        own = part.ndata.pop("orig_id")[inner]
        part.edata.pop("orig_id")
        rows = {"_N/x": graph.x[own], "_N/y": graph.y[own], "_N/seeds": seeds[own]}
        files = {kind: f"part{number}/{kind}.dgl" for kind in ("node_feats", "edge_feats", "part_graph")}
        described[f"part-{number}"] = files
        (folder / f"part{number}").mkdir(parents=True)
        dgl.data.utils.save_tensors(str(folder / files["node_feats"]), rows)
        dgl.data.utils.save_tensors(str(folder / files["edge_feats"]), {})
        dgl.save_graphs(str(folder / files["part_graph"]), [part])
    (folder / "graph.json").write_text(json.dumps(described))


# -- DistDGL on one host ---------------------------------------------------------------------------------------


def start_distdgl(hosts: Hosts, folder: Path, batch: int, classes: int, samplers: int) -> list[subprocess.Popen[str]]:
    """A trainer on each host, which starts its server; they see a /dev/shm that no other host sees."""
    own_memory = ["sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$0" "$@"']
    addresses = folder / "hosts.txt"
    addresses.write_text("".join(f"{hosts.address(host)} {SERVER_PORT}\n" for host in range(WORKERS)))
    command = [*own_memory, sys.executable, "-m", "benchmarks.distdgl", "--serve", str(batch), str(classes)]
    variables = {
        "MASTER_PORT": str(RENDEZVOUS_PORT),
        "DGLBACKEND": "pytorch",
        "DGL_DIST_MODE": "distributed",
        "DGL_IP_CONFIG": str(addresses),
        "DGL_CONF_PATH": str(folder / "graph.json"),
        "DGL_NUM_SERVER": "1",
        "DGL_NUM_CLIENT": str(WORKERS * (1 + samplers)),
        "DGL_NUM_SAMPLER": str(samplers),
        "DGL_DIST_MAX_TRY_TIMES": "60",  # of 3 seconds, until a server that never comes up is an error
    }
    return [hosts.start(host, command, variables) for host in range(WORKERS)]


def stop(hosts: Hosts, processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        hosts.processes.remove(process)


def run_server() -> None:
    load_dgl().distributed.initialize(os.environ["DGL_IP_CONFIG"])  # does not return


def serve(batch: int, classes: int) -> None:
    """Reads lines, and answers each with what an epoch took."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # DGL talks there
    torch.set_num_threads(1)
    server = {"DGL_ROLE": "server", "DGL_SERVER_ID": os.environ["RANK"]}
    subprocess.Popen([sys.executable, "-m", "benchmarks.distdgl", "--server"], env={**os.environ, **server})
    dgl = load_dgl()
    dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])
    torch.distributed.init_process_group("gloo")
    graph = dgl.distributed.DistGraph(NAME)
    trainer = Trainer(dgl, graph, batch // WORKERS, classes)
    for line in sys.stdin:
        epochs = [trainer.epoch() for _ in range(1 + json.loads(line)["epochs"])]
        answers.write(json.dumps(epochs[-1]) + "\n")
        answers.flush()


class Trainer:
    """As DGL's own example of distributed GraphSAGE trains."""

    def __init__(self, dgl: Any, graph: Any, batch: int, classes: int) -> None:
        from dgl.nn import SAGEConv

        self.graph = graph
        seeds = dgl.distributed.node_split(graph.ndata["seeds"], graph.get_partition_book(), force_even=True)
        assert len(seeds) == STEPS * batch
        sampler = dgl.dataloading.NeighborSampler(list(reversed(FANOUT)))
        self.loader = dgl.dataloading.DistNodeDataLoader(
            graph, seeds, sampler, batch_size=batch, shuffle=True, drop_last=False
        )
        torch.manual_seed(0)
        widths = [graph.ndata["x"].shape[1], HIDDEN, HIDDEN, classes]
        layers = [SAGEConv(widths[i], widths[i + 1], "mean") for i in range(3)]
        self.model = DistributedDataParallel(BlockLayers(layers, lambda layer, block, x: layer(block, x), elu=False))
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=RATE)

    def epoch(self) -> dict[str, float]:
        torch.distributed.barrier()
        sampling = fetching = total = 0.0
        steps = rows = 0
        started, before = time.perf_counter(), received_bytes()
        batches = iter(self.loader)
        while True:
            asked = time.perf_counter()
            minibatch = next(batches, None)
            sampled = time.perf_counter()
            sampling += sampled - asked
            if minibatch is None:
                break
            inputs, outputs, blocks = minibatch
            x, y = self.graph.ndata["x"][inputs], self.graph.ndata["y"][outputs]
            fetching += time.perf_counter() - sampled
            rows += inputs.numel()
            self.optimiser.zero_grad()
            loss = functional.cross_entropy(self.model(blocks, x), y)
            loss.backward()
            self.optimiser.step()
            total += loss.item()
            steps += 1
        torch.distributed.barrier()
        assert steps == STEPS
        return {
            "seconds": time.perf_counter() - started,
            "sampling": sampling,
            "fetching": fetching,
            "rows": rows,
            "loss": total / steps,
            "bytes": received_bytes() - before,
        }


def received_bytes() -> int:
    """What this host's link has brought since it is up."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        if line.strip().startswith("eth0:"):
            return int(line.split(":")[1].split()[0])
    raise RuntimeError("this host has no eth0")


# -- both ------------------------------------------------------------------------------------------------------


def measure_distdgl(bench: Bench, trainers: list[Any], case: str) -> float:
    answers = ask(trainers, {"epochs": 1})
    result = {
        "seconds": max(answer["seconds"] for answer in answers),
        "sampling_seconds": max(answer["sampling"] for answer in answers),
        "fetching_seconds": max(answer["fetching"] for answer in answers),
        "received_mb": sum(answer["bytes"] for answer in answers) / 1e6,
        "rows": sum(answer["rows"] for answer in answers),
        "loss": sum(answer["loss"] for answer in answers) / WORKERS,
    }
    bench.rows.append({"case": case, **result})
    print(
        f"{case:<48} {result['seconds']:8.2f} s   received {result['received_mb']:8.1f} MB   "
        f"sampling {result['sampling_seconds']:7.2f} s   fetching {result['fetching_seconds']:7.2f} s   "
        f"loss {result['loss']:.3f}",
        flush=True,
    )
    return result["seconds"]


def measure_ours(bench: Bench, workers: list[Any], batch: int, case: str, settings: dict[str, Any]) -> float:
    question = {"what": "epochs", "count": 1, "model": MODEL, "plan": "macrobatch", "steps": STEPS, "batch": batch}
    answers = ask(workers, {**question, "sample": {"fanout": FANOUT, **settings}})
    result = {
        "seconds": max(answer["seconds"] for answer in answers),
        "sent_mb": sum(sum(answer["bytes"].values()) for answer in answers) / 1e6,
    }
    bench.rows.append(
        {"case": case, **result, "macrobatch_size": answers[0]["macrobatch_size"], "kept": answers[0]["kept"]}
    )
    print(f"{case:<48} {result['seconds']:8.2f} s   sent     {result['sent_mb']:8.1f} MB", flush=True)
    return result["seconds"]


def prepare(spec: str, batch: int, folder: Path) -> int:
    """Both sides' parts of a graph, in FOLDER/weft and FOLDER/dgl; how many classes it has."""
    graph = open_graph(spec)
    partition(graph, WORKERS, folder / "weft", "community")
    write_parts(graph, *same_parts(folder / "weft", graph, batch), folder / "dgl")
    return graph.num_classes


def compare(bench: Bench, hosts: Hosts, folder: Path, batch: int, classes: int) -> None:
    """One side after the other, so that neither runs beside the other's waiting processes."""
    places = {"unshaped" if megabits is None else f"{megabits:g} Mb/s": megabits for megabits in BANDWIDTHS}
    places = {where: megabits for where, megabits in places.items() if bench.wanted(where)}
    peer: dict[str, float] = {}
    for samplers in SAMPLERS:
        trainers = start_distdgl(hosts, folder / "dgl", batch, classes, samplers)
        for where, megabits in places.items():
            hosts.shape(megabits)
            case = f"{where}, DistDGL" + (", a sampler beside" if samplers else "")
            peer[where] = min(measure_distdgl(bench, trainers, case), peer.get(where, float("inf")))
        stop(hosts, trainers)
        hosts.shape(None)
    workers = start_workers(hosts, "benchmarks.shaped", str(folder / "weft"))
    for where, megabits in places.items():
        hosts.shape(megabits)
        for case in OURS:
            ratio = peer[where] / measure_ours(bench, workers, batch, f"{where}, weft, {case}", cases()[case])
            if case == OURS[-1] and megabits is not None:
                bench.bar(f"{where}: DistDGL at its best against weft, {case}", ratio, BAR)
            else:
                bench.note(f"{where}: DistDGL at its best takes {ratio:.2f} times as long as weft, {case}")


def main() -> int:
    if sys.argv[1:2] == ["--server"]:
        run_server()
        return 0
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]), int(sys.argv[3]))
        return 0
    tuned_allocator()
    bench = Bench("distdgl", parse(__doc__))
    spec, batch = (
        ("synthetic:products?nodes=60000", BATCH // 8) if bench.options.quick else ("synthetic:products", BATCH)
    )
    with tempfile.TemporaryDirectory() as folder, hosts_on_a_switch(WORKERS) as hosts:
        classes = prepare(spec, batch, Path(folder))
        compare(bench, hosts, Path(folder), batch, classes)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
