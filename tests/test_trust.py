"""What weft imports: nothing from the current folder by accident, no code of a run folder that is not this user's."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.launch.launching import ROOT
from weft import trust
from weft.config import make_config
from weft.errors import UserError
from weft.run import Run, start

TINY = "synthetic:tiny"
BOMBS = ("queue", "torch", "numpy", "typing_extensions", "zmq", "secrets", "json", "pip")
BOMB = "open({marker!r}, 'a').write(__name__ + ' ')\nraise SystemExit('imported from the current folder')\n"


@pytest.fixture
def mined(tmp_path: Path) -> Path:
    """A folder whose files have the names of modules that weft imports, and note when they are run."""
    folder = tmp_path / "mined"
    folder.mkdir()
    for name in BOMBS:
        (folder / f"{name}.py").write_text(BOMB.format(marker=str(tmp_path / "fired")))
    return folder


def run_weft(folder: Path, *args: object, safe: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *["-P"] * safe, "-m", "weft", *map(str, args)]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=240, check=False,
                          env={**environment, "OMP_NUM_THREADS": "1", **variables})  # fmt: skip


def test_no_verb_that_starts_workers_runs_what_lies_in_the_current_folder(mined: Path, tmp_path: Path) -> None:
    edges = mined / "edges.csv"
    edges.write_text("from,to\n" + "".join(f"{u},{(7 * u + 1) % 40}\n" for u in range(40)))
    tiny = ["--data", TINY, "--model", "gcn", "--epochs", 1]
    pool = ["--set", "executor.workers=1", "--set", "executor.intervals=2"]
    verbs: list[list[Any]] = [
        ["train", *tiny, "--workers", 2, "--run", "run"],
        ["evaluate", "run"],
        ["export", "run", "--out", "out.csv"],
        ["train", *tiny, "--strategy", "dorylus", *pool, "--run", "pool"],
        ["partition", edges, "--parts", 2, "--workers", 1, "--out", "parts"],
    ]
    for verb in verbs:
        done = run_weft(mined, *verb)
        assert done.returncode == 0, (verb, done.stderr)
    assert not (tmp_path / "fired").exists(), (tmp_path / "fired").read_text()


def test_python_m_weft_leaves_the_current_folder_before_it_imports(mined: Path, tmp_path: Path) -> None:
    """Of its own accord, without -P, for what weft imports; what Python itself imports before is not ours."""
    for name in set(BOMBS) - {"queue", "torch", "numpy", "zmq"}:
        (mined / f"{name}.py").unlink()
    done = run_weft(mined, "settings", safe=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "fired").exists()


OWN = """
import torch
open({marker!r}, "a").write("imported ")
from helper import width  # beside it

class Own(torch.nn.Module):
    def __init__(self, num_in, num_out):
        super().__init__()
        self.lin = torch.nn.Linear(num_in, num_out)

    def forward(self, graph, x):
        return self.lin(graph.aggregate(x, reduce="mean"))

def build(num_in, num_out, config):
    open({marker!r}, "a").write("built ")
    return Own(num_in, num_out)
"""


def write_own(folder: Path, marker: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "my_model.py").write_text(OWN.format(marker=str(marker)))
    (folder / "helper.py").write_text("width = 1\n")


def test_a_model_in_the_current_folder_and_who_may_run_it_later(tmp_path: Path) -> None:
    """The command finds a model beside it, with several workers, too; a copy of the run needs --trust."""
    marker, here = tmp_path / "fired", tmp_path / "here"
    write_own(here, marker)
    own = ["--data", TINY, "--model", "my_model:build", "--epochs", 2, "--workers", 2]
    done = run_weft(here, "train", *own, "--run", "run")
    assert done.returncode == 0, done.stderr
    assert sorted(marker.read_text().split()) == ["built"] * 2 + ["imported"] * 2
    assert run_weft(here, "evaluate", "run").returncode == 0
    shutil.copytree(here / "run", here / "copy")
    marker.unlink()
    for verb in (["evaluate", "copy"], ["train", "--resume", "--run", "copy"]):
        refused = run_weft(here, *verb)
        assert refused.returncode == 2, refused.stderr
        said = " ".join(refused.stderr.split())
        for words in ("function build of module my_model", str(here / "my_model.py"), "look at it, and add --trust"):
            assert words in said, said
    assert not marker.exists(), "nothing of it was run"
    accepted = run_weft(here, "evaluate", "copy", "--trust")
    assert accepted.returncode == 0 and marker.exists(), accepted.stderr


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A run of this user's with a model of its own."""
    run = tmp_path / "run"
    weft.train(TINY, model="tests.training.own_model:build", run=run, quiet=True, train={"epochs": 1})
    return run


def test_what_this_user_made_needs_no_word(made: Path) -> None:
    assert Run(made).evaluate()["test_accuracy"] >= 0
    assert (made / trust.TOKEN).stat().st_mode & 0o777 == 0o600


def test_a_run_that_was_put_in_its_place_is_refused(made: Path, tmp_path: Path) -> None:
    """At the same path, owned by the same user: an archive that was unpacked over it."""
    other = tmp_path / "other"
    weft.train(TINY, model="tests.training.own_model:build", run=other, quiet=True, train={"epochs": 1})
    shutil.rmtree(made)
    shutil.copytree(other, made)
    with pytest.raises(UserError, match=r"this user has not made that run here.*add --trust"):
        Run(made).evaluate()
    assert Run(made).evaluate(trust=True)


def test_a_run_that_was_altered_to_name_other_code_is_refused(made: Path) -> None:
    config = made / "config.yaml"
    text = config.read_text().split("\n", 1)[1].replace("own_model:build", "own_model:noisy")
    config.write_text(text)  # without the line that holds its digest, as somebody does who means it
    for verb in (lambda: Run(made).evaluate(), lambda: Run(made).outputs()):
        with pytest.raises(UserError, match=r"function noisy .* it named other code when this user made it"):
            verb()


def test_a_module_of_the_same_name_from_elsewhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        write_own(tmp_path / name, tmp_path / name / "fired")
    monkeypatch.chdir(tmp_path / "one")
    trust_run = tmp_path / "run"
    trust_run.mkdir()
    (trust_run / "config.yaml").write_text("")
    trust.record(trust_run, "my_model:build")
    trust.check(trust_run, "my_model:build", trust=False)
    monkeypatch.chdir(tmp_path / "two")
    with pytest.raises(UserError, match=r"that module came from .*one/my_model.py"):
        trust.check(trust_run, "my_model:build", trust=False)
    trust.check(trust_run, "gcn", trust=False)


def test_settings_of_a_foreign_run_are_no_way_around(made: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    from weft.cli import app as cli

    shutil.copytree(made, tmp_path / "copy")
    for verb in ("train", "plan"):
        monkeypatch.setattr(sys, "argv", ["weft", verb, str(tmp_path / "copy" / "config.yaml")])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 2 and "add --trust" in capsys.readouterr().err


def test_native_models_need_no_word(tmp_path: Path) -> None:
    run = tmp_path / "run"
    start(make_config({"data": TINY, "run": str(run), "train": {"epochs": 1}}), quiet=True)
    shutil.copytree(run, tmp_path / "copy")
    assert Run(tmp_path / "copy").evaluate() == Run(run).evaluate()
    assert not (run / trust.TOKEN).exists()


def test_a_module_of_the_current_folder_takes_no_place_of_another(tmp_path: Path, monkeypatch: Any) -> None:
    from weft_function.own import file_of, import_own

    (tmp_path / "queue.py").write_text("raise SystemExit\n")
    (tmp_path / "only_here.py").write_text("answer = 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path))])
    monkeypatch.delitem(sys.modules, "queue")
    before = list(sys.path)
    assert hasattr(import_own("queue"), "SimpleQueue")
    assert import_own("only_here").answer == 42 and file_of("only_here.anything") == str(tmp_path / "only_here.py")
    assert sys.path == before and ROOT.exists()
    sys.modules.pop("only_here")
