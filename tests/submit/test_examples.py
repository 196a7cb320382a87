"""The examples of docs/examples are what `weft submit --dry-run` prints; the image is made of files that exist."""

import re
import sys
from pathlib import Path

import pytest

from weft.cli import app as cli

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
DOCKERFILE = ROOT / "docker" / "Dockerfile"
IMAGE = "registry.example.com/weft:0.1.0"
RUN = f"{EXAMPLES}/cluster.yaml --nodes 2 --memory 64G"
COMMANDS = {
    "slurm.sh": f"weft submit slurm {RUN} --dry-run",
    "kubernetes.yaml": f"weft submit kubernetes {RUN} --image {IMAGE} --dry-run",
}


@pytest.mark.parametrize("example", COMMANDS)
def test_examples_are_what_the_command_prints(
    example: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", COMMANDS[example].split())
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    printed = capsys.readouterr().out
    assert printed == (EXAMPLES / example).read_text(), f"write it again: {COMMANDS[example]} > docs/examples/{example}"


def test_the_page_names_these_commands() -> None:
    page = " ".join((ROOT / "docs" / "many-hosts.md").read_text().replace("\\\n", " ").split())
    for command in COMMANDS.values():
        assert command.replace(f"{EXAMPLES}/", "docs/examples/") in page


def copied() -> set[str]:
    """What the image copies from the repository."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    return {path for line in lines for path in line.split()}


def test_what_the_image_copies_exists_and_suffices() -> None:
    found = copied()
    assert all((ROOT / path).exists() for path in found)
    project = (ROOT / "pyproject.toml").read_text()
    packages = set(re.search(r"wheel.packages = \[(.+)\]", project)[1].replace('"', "").split(", "))  # type: ignore[index]
    files = set(re.search(r"license-files = \[(.+)\]", project)[1].replace('"', "").split(", "))  # type: ignore[index]
    assert found >= packages | files | {
        "README.md",
        "pyproject.toml",
        "CMakeLists.txt",
        "cmake",
        "src",
        "constraints.txt",
    }
    extras = re.search(r"'\.\[(.+)\]'", DOCKERFILE.read_text())
    assert extras is not None and all(f"\n{name} = [" in project for name in extras[1].split(","))


def test_the_context_of_the_image_is_what_it_copies() -> None:
    ignored = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == copied()
