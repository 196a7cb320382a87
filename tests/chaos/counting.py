"""What a chaos suite did, round by round; tests/conftest.py prints the tables at the end."""

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

SEED = int(os.environ.get("CHAOS_SEED", "0"))


def rounds(few: int, share: float = 1.0) -> int:
    """How many rounds a suite plays: its share of CHAOS_ROUNDS, or a few."""
    return max(few, round(share * int(os.environ.get("CHAOS_ROUNDS", 0))))


@dataclass
class Round:
    """One fault, and what did not hold after it."""

    suite: str
    case: str
    what: str  # enough to do it again
    hit: str | None = None  # where the fault fired; None: it did not
    victim: str = ""
    late: bool = False  # it fired when all was done
    failures: list[tuple[str, str]] = field(default_factory=list)  # kind, and what was seen

    def fail(self, kind: str, seen: str) -> None:
        self.failures.append((kind, seen))


PLAYED: list[Round] = []  # by every suite of this session


def tell(suite: str, played: int, wanted: int, failed: int) -> None:
    """A line now and then, where many rounds are played: they take an hour."""
    if wanted >= 50 and (played % max(1, wanted // 50) == 0 or played >= wanted):
        print(f"{suite}: {played} of {wanted} rounds, {failed} failed", file=sys.stderr, flush=True)


def check(played: Sequence[Round]) -> None:
    """Notes rounds for the tables, and fails when anything did not hold."""
    PLAYED.extend(played)
    print(table(played))
    bad = [one for one in played if one.failures]
    assert not bad, "\n".join(f"{one.suite} {one.case} ({one.what}), hit in {one.hit}: {kind}: {seen[-2000:]}"
                              for one in bad for kind, seen in one.failures)  # fmt: skip


def table(played: Sequence[Round]) -> str:
    """Rounds by suite, case and place, and how many of them failed in which way."""
    lines = []
    for suite in dict.fromkeys(one.suite for one in played):
        mine = [one for one in played if one.suite == suite]
        places = sorted({one.hit for one in mine if one.hit})
        header = ["case", "rounds", "fired", *places, "failed"]
        rows = []
        for case in [*dict.fromkeys(one.case for one in mine), None]:
            of_case = [one for one in mine if case is None or one.case == case]
            hits = Counter(one.hit for one in of_case)
            rows.append([case or "all", len(of_case), len(of_case) - hits[None], *(hits[place] for place in places),
                         sum(bool(one.failures) for one in of_case)])  # fmt: skip
        kinds = Counter(kind for one in mine for kind in {kind for kind, _ in one.failures})
        failed = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) or "none"
        lines += [f"{suite} (seed {SEED})", _aligned([header, *rows]), f"failed: {failed}", ""]
    return "\n".join(lines)


def _aligned(rows: list[list[object]]) -> str:
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in texts) for column in range(len(texts[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in texts)
