"""Seeded damage to the files of a folder, and what weft makes of it.

    world = World.make(folder, workers=2)        # a graph folder, parts and a finished run, and what each verb answers
    counts = mutate(world, number=500, seed=0)   # Counter of outcomes; `world.failures` says what went wrong

Every round takes a verb, a file that it may read and a kind of damage, does the damage to a copy, runs the verb there
as a process of its own and compares. Good outcomes are "refused" (exit code 2, one sentence), "unchanged" (the same
answer as without the damage) and "named" (another answer that says what is damaged: a report does, and a run whose
newest checkpoint is damaged says so and takes the one before). Failures are "silent" (another answer), "traceback",
"crash" (ended by a signal), "hang" and "other".
"""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.counting import tell

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 240
GOOD = ("refused", "unchanged", "named")


def _flip(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)


def _overwrite(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    if data:
        at = rng.randrange(len(data))
        piece = rng.randbytes(min(16, len(data) - at))
        data[at : at + len(piece)] = piece
        file.write_bytes(data)


def _truncate(file: Path, rng: random.Random) -> None:
    os.truncate(file, rng.randrange(file.stat().st_size or 1))


def _replaced(make: Callable[[Path], object]) -> Callable[[Path, random.Random], None]:
    def act(file: Path, _: random.Random) -> None:
        file.unlink()
        make(file)

    return act


def _exchange(file: Path, rng: random.Random) -> None:
    """Another file of the same folder lies in its place."""
    others = sorted(other for other in file.parent.iterdir() if other.is_file() and other != file)
    if others:
        shutil.copyfile(rng.choice(others), file)


def _lengthen(file: Path, rng: random.Random) -> None:
    with file.open("ab") as handle:
        handle.write(rng.randbytes(rng.randrange(1, 64)))


KINDS: dict[str, Callable[[Path, random.Random], None]] = {
    "missing": _replaced(lambda file: None),
    "empty": lambda file, _: os.truncate(file, 0),
    "folder": _replaced(Path.mkdir),
    "pipe": _replaced(os.mkfifo),
    "loop": _replaced(lambda file: file.symlink_to(file.name)),
    "truncated": _truncate,
    "lengthened": _lengthen,
    "flipped": _flip,
    "overwritten": _overwrite,
    "exchanged": _exchange,
    "unreadable": lambda file, _: file.chmod(0),
}


@dataclass(frozen=True)
class Verb:
    """A command line, the folder whose files it may read, and how to compare what it gives."""

    arguments: tuple[str, ...]
    folder: str
    answer: Callable[[Path, str], object]  # of the place in which it ran, and what it printed


def _printed(_: Path, out: str) -> object:
    return out


def _weights(run: str) -> Callable[[Path, str], object]:
    return lambda place, _: json.loads((place / run / "summary.json").read_text())["weights_sha256"]


def _files(name: str) -> Callable[[Path, str], object]:
    def digests(place: Path, _: str) -> object:
        path = place / name
        files = sorted(path.rglob("*.npy")) if path.is_dir() else [path]
        return [(str(file.relative_to(place)), hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]

    return digests


def _page(place: Path, _: str) -> object:
    """A report is a page also of a damaged run, and says there what is damaged."""
    text = (place / "page.html").read_text()
    if 'class="problem"' in text:
        return "a problem is named"
    return text.partition("Made on")[0]


def _verbs(workers: int) -> dict[str, Verb]:
    train = ("train", "--model", "gcn", "--epochs", "2", "--set", "threads=1")
    several = ("--workers", str(workers))
    return {
        "inspect-graph": Verb(("inspect", "graph"), "graph", _printed),
        "inspect-parts": Verb(("inspect", "parts"), "parts", _printed),
        "inspect-run": Verb(("inspect", "run"), "run", _printed),
        "partition": Verb(("partition", "graph", "-p", "2", "--method", "random", "-o", "new"), "graph", _files("new")),
        "train-graph": Verb((*train, "--data", "graph", "--run", "new"), "graph", _weights("new")),
        "train-parts": Verb((*train, *several, "--data", "parts", "--run", "new"), "parts", _weights("new")),
        "evaluate": Verb(("evaluate", "run"), "run", _printed),
        "export": Verb(("export", "run", "--out", "out.npy"), "run", _files("out.npy")),
        "report": Verb(("report", "run", "--out", "page.html"), "run", _page),
        "resume": Verb(("train", "--resume", "--run", "half", "--epochs", "3"), "half", _weights("half")),
    }


def weft(place: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    process = subprocess.Popen(
        [sys.executable, "-m", "weft", *arguments], cwd=place, env=environment, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@dataclass
class World:
    """Folders to damage, what the verbs answer about them when they are whole, and what went wrong."""

    whole: Path
    verbs: dict[str, Verb]
    answers: dict[str, object]
    failures: list[str] = field(default_factory=list)

    @classmethod
    def make(cls, folder: Path, workers: int = 2, only: tuple[str, ...] = ()) -> "World":
        whole = folder / "whole"
        whole.mkdir(parents=True)
        verbs = {name: verb for name, verb in _verbs(workers).items() if not only or name in only}
        run = ("train", "--data", "synthetic:tiny", "--model", "gcn", "--epochs", "3", "--set", "threads=1")
        makers = {
            "graph": ("ingest", "synthetic:tiny", "--out", "graph"),
            "parts": ("partition", "synthetic:tiny", "--parts", "2", "--method", "random", "--out", "parts"),
            "run": (*run, "--workers", str(workers), "--run", "run"),
            "half": (*run, "--workers", str(workers), "--run", "half"),
        }
        for name in sorted({verb.folder for verb in verbs.values()}):
            done = weft(whole, *makers[name])
            assert done.returncode == 0, done.stderr
        world = cls(whole, verbs, {})
        for name, verb in verbs.items():
            place = world.copy(folder / f"answer-{name}")
            done = weft(place, *verb.arguments)
            assert done.returncode == 0, done.stderr
            world.answers[name] = verb.answer(place, done.stdout)
            shutil.rmtree(place)
        return world

    def copy(self, place: Path) -> Path:
        # One name for all copies would be in their answers: it is not, since the verbs run with relative paths.
        shutil.copytree(self.whole, place, symlinks=True)
        return place

    def files(self, name: str) -> list[str]:
        """The files of the folder that a verb may read, by their paths from there."""
        folder = self.whole / self.verbs[name].folder
        return sorted(str(file.relative_to(self.whole)) for file in folder.rglob("*") if file.is_file())

    def damaged(self, name: str, file: str, kind: str, rng: random.Random, place: Path) -> str:
        """The outcome of one verb on one damaged file."""
        verb = self.verbs[name]
        self.copy(place)
        try:
            KINDS[kind](place / file, rng)
            outcome, text = self._outcome(name, verb, place)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        if outcome not in GOOD:
            self.failures.append(f"{outcome}: {name} with {file} {kind}: {text[-600:]}")
            print(self.failures[-1], file=sys.stderr, flush=True)  # the rounds after it may take an hour
        return outcome

    def _outcome(self, name: str, verb: Verb, place: Path) -> tuple[str, str]:
        try:
            done = weft(place, *verb.arguments)
        except subprocess.TimeoutExpired:
            return "hang", ""
        text = done.stdout + done.stderr
        if "Traceback" in text:
            return "traceback", text
        if done.returncode < 0 or "was killed by" in text:
            return "crash", text
        if done.returncode == 2:
            return ("refused", text) if "error" in done.stderr else ("other", text)
        if done.returncode:
            return "other", text
        answer = verb.answer(place, done.stdout)
        if answer == self.answers[name]:
            return "unchanged", text
        if answer == "a problem is named" or "note: checkpoint" in done.stderr:
            return "named", text
        return "silent", text


def mutate(world: World, number: int, seed: int, scratch: Path) -> Counter[str]:
    """So many rounds; the same seed does the same damage."""
    rng, counts = random.Random(seed), Counter[str]()
    names = sorted(world.verbs)
    for turn in range(number):
        name = names[turn % len(names)]
        file, kind = rng.choice(world.files(name)), rng.choice(sorted(KINDS))
        counts[world.damaged(name, file, kind, rng, scratch / f"turn-{turn}")] += 1
        tell("damaged files", turn + 1, number, len(world.failures))
    return counts
