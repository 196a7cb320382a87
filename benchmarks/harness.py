"""What every benchmark shares: interleaved timing, tables, bars, and JSON that says which machine it was.

bench = Bench("kernels", parse())
seconds = bench.measure({"ours": f, "dgl": g})      # medians; rounds interleaved: f g f g ...
bench.row("spmm 128", seconds)                       # a line of the table
bench.bar("spmm 128 against the best peer", best / seconds["ours"], 1.0, unit="x")
raise SystemExit(bench.finish())                     # prints the bars; 1 if one falls short
"""

import argparse
import ctypes
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Options:
    quick: bool
    json: Path | None
    only: str | None  # run what contains this word
    plot: Path | None = None


@dataclass(frozen=True)
class Bar:
    name: str
    value: float
    bar: float
    unit: str
    at_least: bool

    @property
    def holds(self) -> bool:
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def line(self) -> str:
        sign = ">=" if self.at_least else "<="
        verdict = "holds" if self.holds else "falls short"
        return f"{self.name}: {self.value:.2f}{self.unit} (bar {sign} {self.bar:.2f}{self.unit}) {verdict}"


def parse(description: str | None = None, argv: Sequence[str] | None = None, plots: bool = False) -> Options:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="smaller, within a minute or so on 2 cores")
    parser.add_argument("--json", type=Path, help="write the results and the machine's description here")
    parser.add_argument("--only", help="run only the cases whose name contains this")
    if plots:
        parser.add_argument("--plot", type=Path, help="draw the results here (PNG; needs matplotlib)")
    return Options(**vars(parser.parse_args(argv)))


def tuned_allocator() -> None:
    """Start again with huge pages on for torch's allocator: for every side of a comparison alike.

    Torch reads the variable once, at its first allocation, so it must be there before the process starts.
    """
    if os.environ.get("THP_MEM_ALLOC_ENABLE") != "1":
        os.environ["THP_MEM_ALLOC_ENABLE"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


@dataclass
class Bench:
    name: str
    options: Options
    rounds: int = 0  # 0: 5 when quick, else 9
    bars: list[Bar] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def wanted(self, case: str) -> bool:
        return self.options.only is None or self.options.only in case

    def measure(
        self,
        sides: Mapping[str, Callable[[], object]],
        rounds: int | None = None,
        warmup: int = 1,
        seconds_a_sample: float = 0.0,
    ) -> dict[str, float]:
        """Median seconds of one call of each side, in interleaved rounds (at least 5).

        `seconds_a_sample`: calls shorter than this are repeated within a sample, for kernels of microseconds.
        """
        rounds = max(rounds or self.rounds or (5 if self.options.quick else 9), 5)
        repeats: dict[str, int] = {}
        for side, call in sides.items():
            for _ in range(max(warmup, 1)):
                took = _seconds(call, 1)
            repeats[side] = max(1, round(seconds_a_sample / took)) if seconds_a_sample else 1
        samples: dict[str, list[float]] = {side: [] for side in sides}
        gc.collect()
        gc.disable()
        try:
            for _ in range(rounds):
                for side, call in sides.items():
                    samples[side].append(_seconds(call, repeats[side]))
        finally:
            gc.enable()
        return {side: statistics.median(times) for side, times in samples.items()}

    def row(self, case: str, seconds: Mapping[str, float], **more: object) -> None:
        """Keep and print one line of the table: milliseconds of each side, and anything else."""
        self.rows.append({"case": case, "seconds": dict(seconds), **more})
        cells = [f"{side} {value * 1e3:9.2f} ms" for side, value in seconds.items()]
        cells += [f"{key} {value:.2f}" if isinstance(value, float) else f"{key} {value}" for key, value in more.items()]
        print(f"{case:<34} " + "   ".join(cells), flush=True)

    def note(self, sentence: str) -> None:
        print(sentence, flush=True)

    def bar(self, name: str, value: float, bar: float, unit: str = "x", at_least: bool = True) -> None:
        self.bars.append(Bar(name, value, bar, unit, at_least))

    def finish(self) -> int:
        """Print one line per bar, write the JSON, and return the exit status."""
        print()
        for bar in self.bars:
            print(bar.line())
        if self.options.json is not None:
            result = {
                "benchmark": self.name,
                "quick": self.options.quick,
                "machine": machine(),
                "rows": self.rows,
                "bars": [{**asdict(bar), "holds": bar.holds} for bar in self.bars],
            }
            self.options.json.parent.mkdir(parents=True, exist_ok=True)
            self.options.json.write_text(json.dumps(result, indent=1) + "\n")
        return 0 if all(bar.holds for bar in self.bars) else 1


class Partial:
    """Values that are measured already, kept in FILE.partial until all are there, so that a later start goes on."""

    def __init__(self, results: Path | None) -> None:
        self._path = None if results is None else results.with_name(results.name + ".partial")
        found = self._path is not None and self._path.exists()
        self._rows: list[dict[str, Any]] = json.loads(self._path.read_text()) if self._path and found else []

    def value(self, case: dict[str, Any]) -> float | None:
        """What was measured of the same case, all of its settings the same."""
        return next((row["value"] for row in self._rows if row["case"] == case), None)

    def keep(self, case: dict[str, Any], value: float) -> None:
        self._rows.append({"case": case, "value": value})
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._path.with_name(self._path.name + ".new")
            fresh.write_text(json.dumps(self._rows, indent=1) + "\n")
            fresh.replace(self._path)

    def remove(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _seconds(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


class PlainCopy:
    """A copy that calls can be measured beside, all threads taking part."""

    def __init__(self, megabytes: int = 128) -> None:
        self._source = torch.ones(megabytes * 1024 * 1024 // 4)
        self._target = torch.empty_like(self._source)
        self.num_bytes = 2 * self._source.numel() * 4  # read, and written

    def __call__(self) -> object:
        return self._target.copy_(self._source)


def trim_memory() -> None:
    """Hand freed memory back, so that one side does not run in what another left warm."""
    gc.collect()
    if platform.system() == "Linux":
        try:
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        except OSError:
            return


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    described: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "huge_pages": os.environ.get("THP_MEM_ALLOC_ENABLE") == "1",
        "load_before": round(os.getloadavg()[0], 2),
    }
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        described["commit"] = commit.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        described["commit"] = None
    return described


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor()
