"""What is asked of a scheduler for a run, and what is refused before anything is queued."""

from pathlib import Path
from typing import Any

import pytest

import weft
from weft.config import make_config
from weft.errors import UserError
from weft.estimate.footprint import estimate_bytes, worker_load
from weft.estimate.hosts import AGENT_BYTES, SPARE, HeldParts, host_bytes
from weft.layers import build_model
from weft.partitioning import load_shard, read_partition
from weft.submit import Hosts, plan_job, seconds_of

SETTINGS: dict[str, Any] = {"data": "/shared/parts", "run": "/shared/runs/first", "workers": 4}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cut") / "parts"
    weft.partition("synthetic:dense?nodes=6000,degree=20", 4, path, method="random")
    return path


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("04:00:00", 14400), ("1-12:00:00", 129600), ("00:30", 1800), ("90m", 5400), ("4h", 14400), ("1d2h", 93600)],
)
def test_time_limits(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "4", "-1h", "1:2", "4h30"])
def test_what_is_no_time_limit(text: str) -> None:
    with pytest.raises(UserError, match="is no time limit"):
        seconds_of(text)


def test_workers_are_shared_out_over_nodes() -> None:
    job = plan_job(SETTINGS, Hosts(2, memory="1G"))
    assert (job.hosts, job.workers_each, job.threads, job.memory_mib, job.gpus_each) == (2, 2, 4, 1024, 0)
    job = plan_job({**SETTINGS, "threads": 3, "device": "cuda"}, Hosts(3, 5, memory="1.5G"))
    assert (job.workers_each, job.threads, job.memory_mib, job.gpus_each) == (5, 3, 1536, 5)
    assert "workers: 15" in job.settings
    assert plan_job(SETTINGS, Hosts(1, memory="1G"), "My Job").name == "my-job"


def test_memory_is_estimated_from_the_parts_as_a_worker_counts_them(parts: Path) -> None:
    """The metadata say what the loaded shards say; a node is asked for what its workers need, and some more."""
    config = make_config({"data": str(parts), "workers": 4, "model": {"name": "gat", "hidden": 64}})
    info, loads = read_partition(parts), []
    for worker in range(4):
        shard = load_shard(parts, worker, 4)
        model = build_model(config.model, info.num_features, info.num_classes)
        counts = info.parts[worker]
        held = HeldParts(counts.nodes, counts.halo, counts.edges, info.num_classes, 0, 0)
        loads.append(worker_load(config, shard, model, info.num_features))
        assert loads[-1] == worker_load(config, held, model, info.num_features)
    needs = [estimate_bytes(load, config.exchange, config.memory) for load in loads]
    for each in (1, 2, 4):
        largest = max(sum(needs[first : first + each]) for first in range(0, 4, each))
        assert host_bytes(config, parts, each) == pytest.approx(SPARE * (AGENT_BYTES + largest), abs=2)


@pytest.mark.parametrize("strategy", ["full", "sar", "batchgnn"])
def test_a_run_needs_no_more_than_is_asked_for(parts: Path, tmp_path: Path, strategy: str) -> None:
    settings = {"data": str(parts), "workers": 2, "strategy": strategy, "model": {"name": "sage", "hidden": 256}}
    asked = plan_job({**settings, "run": str(tmp_path / "run")}, Hosts(1)).memory_bytes
    run = weft.train(
        str(parts), settings["model"], strategy, 2, tmp_path / "run", quiet=True, train={"epochs": 2, "trace_epochs": 0}
    )
    assert sum(run.summary["peak_rss_bytes"]) + AGENT_BYTES < asked < 6 * sum(run.summary["peak_rss_bytes"])


@pytest.mark.parametrize(
    ("settings", "hosts", "words"),
    [
        ({"model": {"hiden": 3}}, Hosts(2), "did you mean model.hidden"),
        ({}, Hosts(3), "4 workers cannot be shared out evenly over 3 nodes"),
        ({"run": None}, Hosts(2), "give --run DIR"),
        ({"run": "runs/first"}, Hosts(2), "run is runs/first, which every machine looks for"),
        ({"data": "my-parts"}, Hosts(2), "data is my-parts, which every machine"),
        ({"edge": {"labels": "e.csv"}}, Hosts(2), "edge.labels is e.csv"),
        ({"run": "/shared/a\nb"}, Hosts(2), "without control characters"),
        ({}, Hosts(2), "give --memory"),
        ({"data": "cora"}, Hosts(2), "cora is no partition that lies here"),
        ({}, Hosts(2, memory="much"), "is no amount of memory"),
        ({"strategy": "single"}, Hosts(2), "1 process"),
        ({"partition": {"parts": 2}}, Hosts(2, memory="1G"), "4 workers need at least as many parts"),
        ({"run": "/shared/1"}, Hosts(2, memory="1G"), None),
    ],
)
def test_mistakes_are_one_sentence(settings: dict[str, Any], hosts: Hosts, words: str | None) -> None:
    if words is None:
        assert plan_job(SETTINGS | settings, hosts).name == "weft-1"
        return
    with pytest.raises(UserError, match=words):
        plan_job(SETTINGS | settings, hosts)


def test_more_workers_than_parts_are_refused(parts: Path) -> None:
    for memory in (None, "8G"):
        with pytest.raises(UserError, match=r"5 workers were asked for but .* has 4 parts"):
            plan_job({**SETTINGS, "data": str(parts)}, Hosts(5, 1, memory=memory))
