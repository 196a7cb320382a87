"""A graph whose edges have times, from two csv files to predictions, by the commands alone."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    kind, day = rng.integers(0, 2, 80), rng.integers(1, 29, 80)
    with open("nodes.csv", "w", newline="") as file:
        rows = [(f"u{k}", f"{rng.normal() + kind[k]:.3f}", "ab"[kind[k]], f"2024-01-{day[k]:02}") for k in range(80)]
        csv.writer(file).writerows([("id", "x", "label", "asked"), *rows])
    with open("edges.csv", "w", newline="") as file:
        ends, days = rng.integers(0, 80, (600, 2)), rng.integers(1, 29, 600)
        rows = [(f"u{u}", f"u{v}", f"2024-01-{at:02} 12:00:00") for (u, v), at in zip(ends, days, strict=True)]
        csv.writer(file).writerows([("from", "to", "when"), *rows])


def test_from_tables_with_dates_to_predictions(weft, tables):
    options = ["--time-column", "when", "--vertex-time-column", "asked", "--split", "time:0.6,0.2"]
    code, out, err = weft("ingest", "edges.csv", "--features", "nodes.csv", *options, "-o", "g")
    assert code == 0, err
    shown = " ".join(re.sub(r"[│\n]", " ", out).split())
    assert "edge times 2024-01-01 12:00:00 to 2024-01-28 12:00:00" in shown and "of 80 vertices" in shown
    code, _, err = weft("train", "--data", "g", "--run", "full")
    assert code == 2 and err.startswith("error: the edges of edges have times, and plan full would let")
    settings = ["--set", "sample.batch=16", "--set", "threads=1"]
    code, out, err = weft("train", "--data", "g", "--strategy", "minibatch", "--epochs", "2", *settings, "--run", "r")
    assert code == 0, err
    code, out, err = weft("evaluate", "r")
    assert code == 0 and "test accuracy" in out, err
    code, out, err = weft("export", "r", "--out", "p.csv")
    assert code == 0 and "80 rows written" in out, err
    code, out, err = weft("export", "r", "--at", "2024-01-10", "--out", "then.csv")
    assert code == 0 and "80 rows written" in out, err
    now, then = (Path(file).read_text().splitlines() for file in ("p.csv", "then.csv"))
    assert [row.partition(",")[0] for row in then] == [row.partition(",")[0] for row in now] and then != now
    code, _, err = weft("export", "r", "--at", "then", "--out", "never.csv")
    assert code == 2 and err.startswith("error: the time at which vertices are looked at") and err.count("\n") <= 3
    code, out, err = weft(
        "train", "--data", "g", "--epochs", "1", *settings, "--set", "train.times=ignore", "--run", "i"
    )
    assert code == 0, err
