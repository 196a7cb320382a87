"""What the terminal shows: whole at 80 columns, and in words that can be typed."""

import json
import os
import re
import shlex
import signal
import threading
import time
from io import StringIO
from pathlib import Path
from typing import get_args

import pytest
import yaml
from rich.console import Console as Terminal

from weft.config import RunConfig, list_settings
from weft.sample import Plan
from weft.strategy import PRESETS
from weft.training.console import Console
from weft.training.runfolder import RunFolder
from weft.training.stop import StopRequest

ROOT = Path(__file__).parents[2]
WIDTHS = (80, 120)


def joined(text):
    """The words of a text, wherever its lines end."""
    return " ".join(text.split())


def fits(text, width):
    """Whether every line stays within the width, and none was cut off."""
    return all(len(line) <= width for line in text.splitlines()) and "\N{HORIZONTAL ELLIPSIS}" not in text


@pytest.mark.parametrize("width", WIDTHS)
def test_settings_show_the_values_that_they_allow(weft, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, err = weft("settings")
    assert code == 0 and fits(out, width), err
    shown = joined(out)
    device, plan = (" | ".join(get_args(kind)) for kind in (RunConfig.model_fields["device"].annotation, Plan))
    for allowed in (
        f"where rows live; auto takes a GPU where there is one {device}; default cpu",
        " | ".join(PRESETS) + "; default full",
        f"full | {plan}; default full",
        "learning rate number, above 0; default 0.01",
        "integer, 1 or more; default unset",
        "number, 0 or more, below 1; default 0.5",
        "[integer, ...]",
        "true | false; default true",
    ):
        assert allowed in shown, allowed
    assert all(joined(f"{one.about} {one.values}; default {one.default}") in shown for one in list_settings())


def bar_lines(width, epochs, records, steps=()):
    """What a terminal of this width shows of training, line by line as they were drawn."""
    file = StringIO()
    terminal = Terminal(file=file, force_terminal=True, width=width, color_system=None, legacy_windows=False)
    with Console(epochs, terminal=terminal) as console:
        for record in records:
            console.update(record)
        for step in steps:
            console.step(*step)
    drawn = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", file.getvalue()).replace("\r", "\n")
    return [line for line in drawn.splitlines() if "epoch" in line]


@pytest.mark.parametrize("metric", ["val_accuracy", "val_macro_f1"])
@pytest.mark.parametrize("steps", [[], [(1235, 1020, 1024)]])
def test_the_bar_keeps_loss_and_metric_at_80_columns(metric, steps):
    record = {"epoch": 1234, "train_loss": 0.51234, metric: 0.81234, "val_loss": 0.61234, "seconds": 12.345}
    later = {"epoch": 1235, "train_loss": 0.5, "seconds": 12.0}  # an epoch without evaluation
    for records, loss in (([record], "0.5123"), ([record, later], "0.5000")):
        last = bar_lines(80, 5000, records, steps)[-1]
        assert f"loss {loss}  {metric.replace('_', ' ')} 0.8123" in last and "\N{HORIZONTAL ELLIPSIS}" not in last
        assert "1235/5000, 1020/1024" in last or not steps
        assert len(last.rstrip()) <= 80 and "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in last
    assert "12.345 s/epoch" in bar_lines(120, 5000, [record])[-1]


@pytest.mark.parametrize("workers", [1, 2])
def test_after_ctrl_c_the_command_to_go_on_is_shown(weft, tmp_path, workers):
    metrics = RunFolder(tmp_path / "my run").metrics_file

    def press_ctrl_c():
        while not metrics.exists() or metrics.read_text().count("\n") < 3:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press_ctrl_c)
    pressing.start()
    train = ["train", "--data", "synthetic:tiny", "--epochs", 10**6, "--run", "my run", "--workers", workers]
    code, _, err = weft(*train, "--set", "train.trace_epochs=0")
    pressing.join()
    assert code in (130, 143) and "Ctrl-C again ends" in err
    words, command = err.strip().splitlines()[-1].split(": ")
    assert words == "the run was interrupted; go on with"
    done = len(RunFolder(tmp_path / "my run").metrics())
    assert done >= 3
    program, *arguments = shlex.split(command)
    assert program == "weft"
    code, _, err = weft(*arguments, "--epochs", done + 2)
    assert code == 0, err
    records = RunFolder(tmp_path / "my run").metrics()
    assert [record["epoch"] for record in records] == list(range(1, done + 3))


def test_a_second_ctrl_c_does_not_wait(capsys):
    request = StopRequest()
    request.handle(signal.SIGINT, None)
    assert request.asked and "Ctrl-C again" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        request.handle(signal.SIGINT, None)
    asked = StopRequest()
    for _ in range(2):  # who asks to end a process may repeat it
        asked.handle(signal.SIGTERM, None)
    assert asked.asked


@pytest.mark.parametrize("width", WIDTHS)
def test_plans_fit_and_end_in_the_command_that_trains_by_the_best_one(weft, tmp_path, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    (tmp_path / "my config.yaml").write_text("data: synthetic:tiny\n")
    options = ["my config.yaml", "--model", "sage", "--set", "model.hidden=4", "--set", "sample.batch=30"]
    code, out, err = weft("plan", *options, "--json", "plans.json")
    assert code == 0, err
    *shown, command = out.strip().splitlines()
    assert fits("\n".join(shown), width)
    found = json.loads((tmp_path / "plans.json").read_text())
    for plan in found["plans"]:
        assert any(line.split()[0] == plan["strategy"] and f" {plan['seconds']:.3f} " in line for line in shown[4:])
    assert ("edge balance" in joined(out)) == (width > 100)
    best = next(plan for plan in found["plans"] if plan["label"] == found["best"])
    program, *arguments = shlex.split(command)
    assert (program, *arguments[:2]) == ("weft", "train", "my config.yaml") and command == found["command"]
    code, _, err = weft(*arguments, "--epochs", 1, "--run", "run")
    assert code == 0, err
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["strategy"], config["model"]["name"], config["model"]["hidden"]) == (best["strategy"], "sage", 4)
    assert config["sample"] == {**config["sample"], "batch": 30, **best["settings"].get("sample", {})}


def test_balances_have_one_name_everywhere(weft, tmp_path):
    code, out, err = weft("partition", "synthetic:tiny", "--parts", 3, "--method", "random", "--out", "parts")
    assert code == 0, err
    balances = re.findall(r"(vertex balance|edge balance|training vertex balance) +\S? *([\d.]+)", out)
    assert len(balances) == 3 and len({value for _, value in balances}) > 1
    code, _, err = weft("train", "--data", "parts", "--epochs", 1, "--run", "run")
    assert code == 0 and weft("report", "run")[0] == 0, err
    page = joined(re.sub("<[^>]*>", " ", (tmp_path / "run" / "report.html").read_text()))
    shown = joined(weft("inspect", "parts")[1].replace("\N{BOX DRAWINGS LIGHT VERTICAL}", " "))
    for name, value in balances:
        assert f"{name} {value}" in shown
        assert re.search(rf" {name} ({re.escape(value)}|1) ", page), name
    for file in (ROOT / "weft").rglob("*.py"):
        assert "node balance" not in file.read_text() and "node_balance" not in file.read_text(), file
