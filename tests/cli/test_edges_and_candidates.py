"""Edges that carry features, learned columns, and candidates of links, as a stranger asks for them."""

import csv

import numpy as np
import pytest


@pytest.fixture
def files(tmp_path):
    """Roads between towns, whose length says whether they stay in a region; towns have one of many owners."""
    rng = np.random.default_rng(0)
    with (tmp_path / "roads.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(["src", "dst", "length", "traffic"])
        for a, b in rng.integers(0, 80, (500, 2)):
            writer.writerow([f"t{a}", f"t{b}", (a + b) % 2 + 0.1 * rng.random(), rng.random()])
    with (tmp_path / "towns.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "people", "owner", "region"])
        for number in range(80):
            writer.writerow([f"t{number}", rng.normal(), f"owner {rng.integers(40)}", "NS"[number % 2]])
    (tmp_path / "some.csv").write_text("id\nt3\nt9\n")
    (tmp_path / "pairs.csv").write_text("src,dst\nt3,t5\nt9,t1\nt9,t2\n")
    return tmp_path


def test_edges_are_read_and_candidates_written(weft, files):
    code, out, err = weft(
        "ingest", "roads.csv", "--edge-features", "length", "--weight-column", "traffic", "--features", "towns.csv",
        "--label-column", "region", "--learned-columns", "owner", "--split", "random:0.6,0.2@0", "--out", "roads",
    )  # fmt: skip
    assert code == 0, err
    assert "a learned row for" in " ".join(out.split())
    code, out, err = weft("train", "--data", "roads", "--model", "gat", "--epochs", 2, "--run", "gat")
    assert code == 0, err
    told = "the edges of roads have weights that gat does not read: weights are read by this model with"
    assert err.count(told) == 1 and told not in out
    assert weft("report", "gat")[0] == 0
    assert told in (files / "gat" / "report.html").read_text()
    code, out, err = weft(
        "train", "--data", "roads", "--model", "sage", "--set", "train.task=links", "--epochs", 2, "--run", "links"
    )
    assert code == 0, err
    assert weft("export", "links", "--top", 4, "--for", "some.csv", "--out", "top.csv")[0] == 0
    rows = list(csv.DictReader((files / "top.csv").open()))
    assert [(row["source"], row["rank"]) for row in rows] == [
        (town, str(k)) for town in ("t3", "t9") for k in range(1, 5)
    ]
    assert weft("export", "links", "--pairs", "pairs.csv", "--out", "scores.parquet")[0] == 0
    for more, said in (
        (("--pairs", "pairs.csv", "--top", 3), "leave --top, --for and --with-known out"),
        (("--for", "some.csv"), "--for is for scores of links"),
        (("--top", 3, "--candidates", "both"), "candidates are destinations or sources"),
        (("--top", 3, "--relation", "buys"), "the edges of the graph have no relations"),
    ):
        code, _, err = weft("export", "links", *more, "--out", "never.csv")
        assert code == 2 and said in err and err.count("error:") == 1, err
    assert "task=links" in weft("export", "gat", "--top", 3, "--out", "never.csv")[2]
    assert not (files / "never.csv").exists()
