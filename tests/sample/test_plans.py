"""Plans compared before training: what is counted is what a run does, and auto takes the best."""

import json

import pytest
from typer.testing import CliRunner

from weft.cli.app import app
from weft.config import make_config
from weft.estimate.cost import PlanEstimate, best_of
from weft.run import compare_plans, start

SETTINGS = {
    "data": "synthetic:tiny", "model": {"name": "sage", "hidden": 16, "layers": 2}, "seed": 3, "threads": 1,
    "workers": 3, "sample": {"batch": 16, "fanout": [5, 4]},
}  # fmt: skip


@pytest.fixture(scope="module")
def plans():
    found = compare_plans(make_config({**SETTINGS, "strategy": "auto"}), megabits=100.0, latency=1e-4)
    assert found["megabits"] == pytest.approx(100) and found["latency_seconds"] == 1e-4
    return {plan["label"]: plan for plan in found["plans"]}


@pytest.mark.parametrize(
    "label",
    ["independent", "macrobatch K=4", "split", "split K=4", "split K=2, kept aggregates", "split, 1 hop alone"],
)
def test_what_is_counted_is_what_a_run_does(tmp_path, plans, label):
    plan = plans[label]
    run = start(
        make_config(
            {
                **SETTINGS,
                "run": str(tmp_path / "run"),
                "strategy": plan["strategy"],
                "sample": {**SETTINGS["sample"], **plan["settings"]["sample"]},
                "train": {"epochs": 1},
            }
        ),
        quiet=True,
    )
    summary = run.summary
    steps = summary["minibatches"]["steps"]
    assert steps <= 16  # so all of the first epoch was counted
    rows, wire = summary["rows"], summary["wire_bytes"]
    assert plan["remote"] * steps == pytest.approx(rows["remote"], abs=3)  # workers round down
    assert plan["rows"] * steps == pytest.approx(rows["unique"], abs=3)
    sent = sum(wire[kind] for kind in ("features", "ids", "topology", "hidden_forward", "hidden_backward"))
    weights = plan["megabytes"] * 1e6 - sent  # what is left are gradients, and what the run draws a little otherwise
    assert weights == pytest.approx(wire["gradients"] * 2 * 2 / 3, rel=0.2)


def test_sharing_computes_every_edge_once(plans):
    alone = compare_plans(make_config({**SETTINGS, "workers": 1, "strategy": "auto"}))
    (once,) = (plan["edges"] for plan in alone["plans"] if plan["label"] == "independent")
    assert plans["split"]["edges"] == pytest.approx(once)
    assert plans["independent"]["edges"] > once
    assert plans["split, 1 hop alone"]["edges"] == pytest.approx(once)  # seeds have one owner, so hop 1 is not shared
    assert plans["split K=4"]["remote"] < plans["split"]["remote"] < plans["independent"]["remote"]
    assert plans["split, kept aggregates"]["remote"] == 0


def test_auto_is_the_best_plan_and_says_which(tmp_path):
    run = start(make_config({**SETTINGS, "run": str(tmp_path / "run"), "strategy": "auto"}), quiet=True)
    assert run.summary["strategy"] in ("full", "sar", "minibatch", "batchgnn", "gsplit")
    assert run.config.strategy == run.summary["strategy"]
    assert set(run.evaluate()) == {"train_accuracy", "val_accuracy", "test_accuracy"}


def test_the_fastest_that_fits_is_taken():
    def estimate(label: str, seconds: float, memory: int, fits: bool) -> PlanEstimate:
        return PlanEstimate(label, "full", {}, 1, 1, 1, 1, 1, 1, memory, seconds, fits)

    slow, quick, small = estimate("slow", 2, 5, True), estimate("quick", 1, 9, False), estimate("small", 3, 1, False)
    assert best_of([slow, quick]) is slow
    assert best_of([quick, small]) is small


def test_the_command_prints_and_writes_the_table(tmp_path):
    file = tmp_path / "plans.json"
    options = ["--data", "synthetic:tiny", "--model", "gat", "--workers", "2", "--bandwidth", "50", "--json", str(file)]
    answer = CliRunner().invoke(app, ["plan", *options, "--set", "threads=1", "--set", "model.hidden=4"])
    assert answer.exit_code == 0, answer.output
    best = json.loads(file.read_text())["best"]
    assert f"best: {best}" in answer.output and "50 Mb/s" in answer.output
    assert not any(
        plan["settings"].get("sample", {}).get("cache_aggregates") == "always"
        for plan in json.loads(file.read_text())["plans"]
    )
