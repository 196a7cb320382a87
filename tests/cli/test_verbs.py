"""The command line as a stranger uses it, and what it says to mistakes."""

import csv
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import typer
import yaml

from weft import __version__ as version
from weft.cli import app as cli


@pytest.fixture
def files(tmp_path):
    """An edge list between string ids, features and labels: two communities, told apart by one feature."""
    rng = np.random.default_rng(0)
    names = [f"v{number}" for number in range(60)]
    side = np.arange(60) % 2
    with (tmp_path / "edges.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(["from", "to"])
        for _ in range(300):
            u = rng.integers(60)
            v = rng.choice(np.flatnonzero(side == side[u]))
            writer.writerow([names[u], names[v]])
    with (tmp_path / "nodes.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "a", "b", "label"])
        for number, name in enumerate(names):
            writer.writerow([name, rng.normal() + side[number], rng.normal(), "odd" if side[number] else "even"])
    return tmp_path


def test_from_files_to_predictions(weft, files):
    code, out, err = weft(
        "ingest", "edges.csv", "--features", "nodes.csv", "--label-column", "label", "--id-column", "id",
        "--split", "random:0.5,0.2@1", "--undirected", "--out", "graph",
    )  # fmt: skip
    assert code == 0, err
    assert "60" in out
    code, out, err = weft("partition", "graph", "--parts", 3, "--out", "parts")
    assert code == 0, err
    assert "cut edges" in out
    for shown in (weft("inspect", "graph")[1], weft("inspect", "parts")[1]):
        assert "2 columns of nodes.csv, by 30 training vertices" in shown and "standardised" in shown
    code, out, err = weft("train", "--data", "parts", "--model", "sage", "--epochs", 20, "--run", "run", "--workers", 2)
    assert code == 0, err
    code, out, err = weft("evaluate", "run")
    assert code == 0 and "test accuracy" in out, err
    assert weft("export", "run", "--out", "out.parquet")[0] == 0
    table = pq.read_table("out.parquet").to_pylist()
    assert {row["id"] for row in table} == {f"v{number}" for number in range(60)}
    right = sum(row["class"] == ("odd" if int(row["id"][1:]) % 2 else "even") for row in table)
    assert right > 45, "the classes are told apart by features and neighbours"
    assert weft("report", "run")[0] == 0
    assert "<html" in (files / "run" / "report.html").read_text()
    assert "sage" in weft("inspect", "run")[1]
    assert "parts" in weft("inspect", "parts")[1]


def test_parts_for_minibatches(weft):
    options = ["--method", "presample", "--presample-epochs", 1, "--batch", 40, "--fanout", "4,-1"]
    code, out, err = weft("partition", "synthetic:tiny", "--parts", 2, *options, "--out", "parts")
    assert code == 0, err
    for shown in (out, weft("inspect", "parts")[1]):
        assert "batch 40, fan-out 4, all" in shown and "sampled edges cut" in shown and "in epoch 2" in shown
    train = ["train", "--data", "parts", "--workers", 2, "--strategy", "batchgnn", "--model", "sage", "--epochs", 2]
    code, _, err = weft(*train, "--run", "run", "--set", "sample.fanout=[4,4]", "--set", "model.layers=2")
    assert code == 0, err


def test_edges_of_several_kinds(weft, tmp_path):
    (tmp_path / "triples.csv").write_text(
        "head,relation,tail,since\nann,knows,bob,3\nbob,likes,ann,4\nann,likes,bob,5\n"
    )
    code, out, err = weft("ingest", "triples.csv", "--edge-features", "since", "--undirected", "--out", "g")
    assert code == 0, err
    assert weft("partition", "g", "--parts", "2", "--out", "p")[0] == 0
    for folder in ("g", "p"):
        code, out, err = weft("inspect", folder)
        assert code == 0, err
        assert all(text in out for text in ("relations", "4: ", "likes", "(reverse)", "edge features")), out


def test_columns_of_a_table(weft, tmp_path):
    """What is decided about each column is listed, warnings are no output, and options choose otherwise."""
    (tmp_path / "e.csv").write_text("src,dst\nann,bob\nbob,cyd\ncyd,dan\n")
    (tmp_path / "n.csv").write_text("id,age,code,same,label\nann,20,1,5,x\nbob,,2,5,y\ncyd,60,1,5,x\n")
    code, _, err = weft("ingest", "e.csv", "--features", "n.csv", "--out", "g")
    assert code == 2 and "'dan' is not among" in err
    options = ["--category-columns", "code", "--missing-rows", "zero", "--out", "g"]
    code, out, err = weft("ingest", "e.csv", "--features", "n.csv", *options)
    assert code == 0, err
    for words in (
        "4 columns of n.csv, by 3 rows: there is no training split",
        "33.3 %",
        "2 one-hot (1, 2)",
        "left out",
    ):
        assert words in " ".join(out.split()), out
    assert "warning" not in out and "warning 1 vertex without a row" in err and "'same' has the same value" in err
    again = weft("inspect", "g")
    assert "2 one-hot (1, 2)" in " ".join(again[1].split()) and "'same' has the same value" in again[2]
    code, out, err = weft("ingest", "e.csv", "--features", "n.csv", "--raw-features", "--ignore-columns", "age,same",
                          "--missing-rows", "drop", "--out", "raw")  # fmt: skip
    assert code == 0 and "unchanged" in out and "1 edge left out" in err, err
    code, _, err = weft("ingest", "e.csv", "--features", "n.csv", "--missing-rows", "zeros", "--out", "h")
    assert code == 2 and "did you mean 'zero'" in err
    code, _, err = weft("ingest", "e.csv", "--log-columns", "age", "--out", "h")
    assert code == 2 and "--features" in err
    assert "feature values" in weft("inspect", "synthetic:tiny")[1]


def test_config_files_and_settings(weft, tmp_path):
    (tmp_path / "c.yaml").write_text("data: synthetic:tiny\nmodel: {name: gcn, hidden: 4}\ntrain: {epochs: 2}\n")
    code, _, err = weft("train", "c.yaml", "--run", "r", "--set", "optim.lr=1e-3", "--set", "model.norm=layer")
    assert code == 0, err
    config = yaml.safe_load((tmp_path / "r" / "config.yaml").read_text())
    assert config["optim"]["lr"] == 1e-3 and config["model"] == {**config["model"], "hidden": 4, "norm": "layer"}
    assert "optim.clip_norm" in weft("settings")[1]


MISTAKES = [
    (["trian"], "no such command 'trian': did you mean 'train'?"),
    (["train", "--epoch", "3"], "no such option --epoch: did you mean --epochs? (see 'weft train --help')"),
    (["train", "--workers", "0"], "invalid value for '--workers': "),
    (["train", "--workers", "two"], "(see 'weft train --help')"),
    (["train", "--workers"], "--workers"),
    (["partition", "synthetic:tiny"], "missing option '--parts'"),
    (["ingest"], "missing argument"),
    (["lambda", "pakage"], "no such command 'pakage'"),
    (["train", "--data", "corra"], "did you mean 'cora'"),
    (["train", "--data", "synthetic:tiny", "--model", "gatt"], "did you mean 'gat'"),
    (["train", "--data", "synthetic:tiny", "--strategy", "fulll"], "did you mean 'full'"),
    (["train", "--data", "synthetic:tinny"], "tiny"),
    (["train", "--data", "synthetic:tiny", "--set", "model.hiden=3"], "did you mean model.hidden"),
    (["train", "--data", "synthetic:tiny", "--set", "optim.lr=fast"], "optim.lr"),
    (["train", "--data", "synthetic:tiny", "--set", "model.dropout=1.5"], "model.dropout"),
    (["train", "--data", "synthetic:tiny", "--set", "exchange.codec=zip"], "codec"),
    (["train", "--data", "synthetic:tiny", "--set", "nonsense"], "section.key=value"),
    (["train", "--data", "synthetic:tiny", "--set", "train.metric=acuracy"], "did you mean 'accuracy'"),
    (["train", "--data", "synthetic:tiny", "--set", "partition.parts=2", "--workers", "3"], "at least as many parts"),
    (["train", "--data", "synthetic:tiny", "--set", "partition.method=metsi", "--workers", "2"], "metis"),
    (["train", "--data", "synthetic:tiny", "--workers", "2", "--strategy", "single"], "1 process"),
    (["train", "--data", "synthetic:tiny", "--set", "model.attention_dropout=0.5"], "no attention"),
    (["train", "--data", "synthetic:tiny", "--model", "sage", "--set", "exchange.codec=bf16", "--set",
      "model.reduce=max"], "biased"),
    (["train", "--data", "synthetic:tiny", "--model", "rgcn"], "--relation-column"),
    (["train", "--data", "synthetic:tiny", "--model", "rgcn", "--workers", "2"], "--relation-column"),
    (["train", "--data", "synthetic:tiny", "--set", "model.bases=2"], "model.bases is for rgcn"),
    (["train", "--data", "synthetic:tiny", "--model", "no_such_module:f"], "cannot be imported"),
    (["train", "--resume"], "--run"),
    (["train", "--run", "none", "--resume"], "none"),
    (["train", "missing.yaml"], "missing.yaml"),
    (["train", "--data", "missing/folder"], "does not exist"),
    (["evaluate", "missing"], "does not exist"),
    (["export", "missing", "--out", "x.xlsx"], ".parquet"),
    (["report", "missing"], "missing"),
    (["inspect", "nothing-like-it"], "nothing-like-it"),
    (["partition", "synthetic:tiny", "--parts", "2", "--method", "metsi", "--out", "p"], "metis"),
    (["partition", "synthetic:tiny", "--parts", "2", "--fanout", "5", "--out", "p"], "for --method presample"),
    (["partition", "synthetic:tiny", "--parts", "2", "--method", "presample", "--fanout", "few", "--out", "p"],
     "15,10,5"),
    (["partition", "synthetic:tiny", "--parts", "2", "--method", "presample", "--fanout", "5,0", "--out", "p"],
     "-1 for all"),
    (["ingest", "missing.csv", "--out", "g"], "missing.csv"),
    (["ingest", "missing.yaml", "--out", "g"], "missing.yaml is missing"),
    (["submit", "slrum", "c.yaml"], "no such command 'slrum': did you mean 'slurm'?"),
    (["submit", "slurm"], "missing argument"),
    (["submit", "slurm", "missing.yaml"], "missing.yaml"),
    (["submit", "kubernetes", "missing.yaml", "--node", "2"], "did you mean --nodes?"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "hint"), MISTAKES, ids=[" ".join(args) for args, _ in MISTAKES])
def test_mistakes_get_one_sentence_and_leave_nothing(weft, tmp_path, args, hint):
    code, out, err = weft(*args)
    assert code == 2, (out, err)
    lines = err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and hint in lines[0], err
    left = [path.name for path in tmp_path.rglob("*") if path.is_file() or any(path.iterdir())]
    assert left in ([], ["runs"]), left


BROKEN = """
import torch

class Broken(torch.nn.Module):
    def __init__(self, num_in, num_out, config):
        super().__init__()
        self.lin = torch.nn.Linear(num_in, num_out)

    def forward(self, graph, x):
        return self.lin(x) / (0 // 0)
"""


def test_an_exception_in_a_model_ends_in_the_same_line(weft, tmp_path, monkeypatch):
    (tmp_path / "broken_model.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, _, err = weft("train", "--data", "synthetic:tiny", "--model", "broken_model:Broken")
    lines = err.strip().splitlines()
    assert code == 1 and "Traceback (most recent call last):" in lines and "self.lin(x) / (0 // 0)" in err
    assert lines[-1] == "error: ZeroDivisionError: integer division or modulo by zero"


def test_nothing_but_the_help_without_arguments(weft):
    code, out, err = weft()
    assert code in (0, 2) and "ingest" in out + err and "error:" not in err


def test_more_workers_than_parts(weft):
    assert weft("partition", "synthetic:tiny", "--parts", 2, "--out", "parts")[0] == 0
    code, _, err = weft("train", "--data", "parts", "--workers", 3)
    assert code == 2 and "parts has 2 parts" in err


def test_a_run_is_not_overwritten_by_accident(weft, tmp_path):
    assert weft("train", "--data", "synthetic:tiny", "--epochs", 2, "--run", "r")[0] == 0
    before = (tmp_path / "r" / "summary.json").read_text()
    code, _, err = weft("train", "--data", "synthetic:tiny", "--epochs", 3, "--run", "r")
    assert code == 2 and "--resume" in err and "--overwrite" in err
    assert (tmp_path / "r" / "summary.json").read_text() == before
    code, _, err = weft("train", "--data", "missing/graph", "--run", "r", "--overwrite")
    assert code == 2 and (tmp_path / "r" / "summary.json").read_text() == before, "a failed start loses nothing"


def test_a_run_is_not_submitted_before_it_can_start(weft, tmp_path, monkeypatch):
    (tmp_path / "c.yaml").write_text("workers: 2\nmodel: {name: gcn}\n")
    given = ["--data", f"{tmp_path}/parts", "--nodes", "2"]
    for scheduler, program in (("slurm", "sbatch"), ("kubernetes", "kubectl")):
        submit = ["submit", scheduler, "c.yaml", *given, *(["--mount", tmp_path] if program == "kubectl" else [])]
        monkeypatch.setenv("PATH", "/nowhere")
        for options, words in (
            ([], "give --run DIR"),
            (["--run", "r"], "run is r, which every machine looks for"),
            (["--run", f"{tmp_path}/r"], "give --memory"),
            (["--run", f"{tmp_path}/r", "--memory", "2G"], f"there is no {program}"),
            (["--run", f"{tmp_path}/r", "--memory", "2G", "--set", "model.name=gatt"], "did you mean 'gat'?"),
        ):
            code, out, err = weft(*submit, *options)
            assert code == 2 and out == "" and words in err and err.count("\n") == 1, err
        code, out, err = weft(*submit, "--run", f"{tmp_path}/r", "--memory", "2G", "--dry-run")
        assert code == 0 and "torchrun" in out and err == ""
    code, _, err = weft("submit", "slurm", "c.yaml", *given, "--run", f"{tmp_path}/no/r", "--memory", "2G")
    assert code == 2 and f"{tmp_path}/no is not here" in err
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]


def test_an_altered_part_is_refused(weft, tmp_path):
    weft("partition", "synthetic:tiny", "--parts", 2, "--out", "parts")
    victim = next((tmp_path / "parts").rglob("x.npy"))
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    code, _, err = weft("train", "--data", "parts", "--workers", 1, "--epochs", 1)
    assert code == 2 and "altered" in err


def test_a_package_that_is_missing_is_named(weft, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("weft.serverless.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "boto3", None)
    executor = ("--set", "executor.name=lambda")
    code, _, err = weft("train", "--data", "synthetic:demo", "--strategy", "dorylus", *executor)
    assert code == 2 and "needs boto3, which is not installed: pip install '.[serverless]'" in err
    assert "Traceback" not in err


def test_options_of_the_same_name_say_the_same():
    """`ingest` and `partition` read edge files in the same way. The files beside them have formats of their own."""
    verbs = typer.main.get_command(cli.app).commands
    by_name = [{option.name: option for option in verbs[verb].params} for verb in ("ingest", "partition")]
    shared = by_name[0].keys() & by_name[1].keys() - {"source", "features", "labels", "split"}
    assert {"src_column", "num_nodes", "undirected", "name", "out", "overwrite"} <= shared
    for name in shared:
        first, second = (options[name] for options in by_name)
        assert (first.opts, first.help) == (second.opts, second.help), name


def test_version(weft):
    code, out, _ = weft("--version")
    assert code == 0 and out == f"weft {version}\n"
