"""The batch script of a run, under programs that stand for Slurm's: two nodes, one after the other.

`tests/multihost/test_slurm.py` runs it under Slurm itself.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.submit.submitting import stand_in
from weft.errors import UserError
from weft.submit import Hosts, Limits, plan_job, script, submit


def text_for(run: Path | str, limits: Limits | None = None, **settings: Any) -> str:
    job = plan_job({"data": "/shared/parts", "run": str(run), "workers": 8, **settings}, Hosts(2, memory="64G"))
    return script(job, limits or Limits())


def play(folder: Path, text: str, torchrun: str = "exit 0") -> tuple[int, list[list[str]]]:
    """Runs a script on two nodes; gives its exit code and the words of every call of torchrun and scontrol."""
    programs, calls = folder / "bin", folder / "calls"
    calls.unlink(missing_ok=True)
    note = f'python3 -c "import json, sys; print(json.dumps(sys.argv[1:]))" "$0" "$PET_NODE_RANK" "$@" >> {calls}'
    each = 'while [ "$1" != bash ]; do shift; done; for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@" || c=$?; done'
    stand_in(programs, "srun", f"{each}; exit ${{c:-0}}")
    stand_in(programs, "scontrol", f'if [ "$1" = show ]; then echo node7; echo node8; else {note}; fi')
    stand_in(programs, "torchrun", f"{note}; {torchrun}")
    variables = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_CPUS_PER_TASK": "16",
        "SLURM_JOB_ID": "123",
        "SLURM_JOB_NODELIST": "node[7-8]",
        "GLOO_SOCKET_IFNAME": "eth0",
        "PET_NODE_RANK": "",
    }
    done = subprocess.run(["bash"], input=text, env=os.environ | variables, capture_output=True, text=True, timeout=240)
    assert "error" not in done.stderr, done.stderr
    lines = [json.loads(line) for line in calls.read_text().splitlines()]
    return done.returncode, [[Path(words[0]).name, *words[1:]] for words in lines]


def test_one_torchrun_starts_on_each_node_and_no_word_is_rewritten(tmp_path: Path) -> None:
    run = tmp_path / "a NODE's run of $HOME"
    code, calls = play(tmp_path, text_for(run, model={"name": "sage"}))
    assert code == 0 and len(calls) == 2
    for node, (program, rank, *words) in enumerate(calls):
        assert (program, rank) == ("torchrun", str(node))
        assert words == [
            "--nnodes=2", "--nproc-per-node=4", "--shutdown-timeout=100", "--master-addr=node7",
            "--master-port=20123", "-m", "--", "weft", "train", f"{run}.yaml", "--resume",
        ]  # fmt: skip
    settings = yaml.safe_load(Path(f"{run}.yaml").read_text())
    assert settings["run"] == str(run) and settings["workers"] == 8 and settings["model"] == {"name": "sage"}


def interrupted(run: Path) -> str:
    return f'mkdir -p {run}; echo \'{{"status": "interrupted"}}\' > {run}/new; mv {run}/new {run}/summary.json; exit 1'


def test_it_queues_itself_again_after_an_interruption_only(tmp_path: Path) -> None:
    run = tmp_path / "run"
    text = text_for(run)
    code, calls = play(tmp_path, text, interrupted(run))
    assert code == 1 and calls[-1] == ["scontrol", "", "requeue", "123"]
    code, calls = play(tmp_path, text, "exit 1")  # a failure; the summary of the time before still lies there
    assert code == 1 and [words[0] for words in calls] == ["torchrun", "torchrun"]


def test_options_name_what_the_run_needs() -> None:
    limits = Limits("1-02:30:30", ["partition=long", "account=mine"], ["module load python"])
    text = text_for("/shared/runs/100% of a run", limits, threads=2, device="cuda")
    options = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert options == [
        "job-name=weft-100-of-a-run", "nodes=2", "ntasks-per-node=1", "cpus-per-task=8", "mem=65536M",
        "gpus-per-node=4", "time=1-02:31:00", "signal=TERM@120", "requeue", "open-mode=append",
        'output="/shared/runs/100%% of a run-%j.log"', "partition=long", "account=mine",
    ]  # fmt: skip
    assert "\nmodule load python\n" in text and "OMP_NUM_THREADS=2" in text


def test_settings_cannot_end_the_text_that_they_stand_in(tmp_path: Path) -> None:
    run = tmp_path / "run"
    text = text_for(run, model={"name": "sage"})
    assert text.count("END_OF_SETTINGS\n") == 1
    sly = plan_job(
        {"data": "/shared/parts", "run": str(run), "link": {"val_edges": "/a"}}, Hosts(1, memory="1G")
    )  # a line of its own can only be a key
    object.__setattr__(sly, "settings", "run: a\nEND_OF_SETTINGS\n")
    text = script(sly, Limits())
    assert text.count("\nEND_OF_SETTINGS\n") == 1 and text.count("END_OF_SETTINGS_\n") == 1


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits("2m"), "leaves nothing for training"),
        (Limits("never"), "'never' is no time limit"),
        (Limits(options=["--partition=long"]), "without dashes"),
        (Limits(options=["comment=a\nrm"]), "is no option of sbatch"),
    ],
)
def test_mistakes_are_one_sentence(limits: Limits, words: str) -> None:
    with pytest.raises(UserError, match=words):
        text_for("/shared/runs/first", limits)


def test_scripts_go_to_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path / "bin", "sbatch", f"cat > {tmp_path}/script; echo Submitted batch job 7")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    text = text_for("/shared/runs/first")
    assert submit(text) == "Submitted batch job 7" and (tmp_path / "script").read_text() == text
    stand_in(tmp_path / "bin", "sbatch", "echo sbatch: error: invalid partition >&2; exit 1")
    with pytest.raises(UserError, match="sbatch failed: sbatch: error: invalid partition"):
        submit(text)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is no sbatch"):
        submit(text)
