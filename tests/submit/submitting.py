"""Programs that stand for a scheduler's: they note what they are given, and answer."""

from pathlib import Path


def stand_in(folder: Path, name: str, script: str) -> None:
    """A program of this name in a folder, for PATH."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
