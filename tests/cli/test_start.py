"""What the command line imports before it knows what is wanted: torch takes seconds, and help must not wait for it."""

import subprocess
import sys

import pytest

import weft


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["ingest", "--help"], ["submit", "slurm", "--help"], ["trian"], ["train", "--datta", "cora"]],
)
def test_help_and_mistakes_do_not_wait_for_torch(arguments: list[str]) -> None:
    code = (
        "import sys; from weft.cli.app import main\n"
        f"sys.argv = ['weft', *{arguments!r}]\n"
        "try: main()\n"
        "finally: print('torch imported:', 'torch' in sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "torch imported: False" in run.stdout, run.stdout + run.stderr


def test_help_of_a_verb_names_what_is_registered() -> None:
    run = subprocess.run([sys.executable, "-m", "weft", "train", "--help"], capture_output=True, text=True, timeout=120)
    assert "rgcn" in run.stdout and "{" not in run.stdout, run.stdout + run.stderr


def test_the_interface_has_every_name_and_package() -> None:
    assert all(getattr(weft, name) is not None for name in weft.__all__) and set(weft.__all__) <= set(dir(weft))
    assert weft.training.loop.fit and weft.layers.GCN
    with pytest.raises(AttributeError, match="module 'weft' has no attribute 'trian'"):
        weft.trian  # noqa: B018
