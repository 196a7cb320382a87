"""Minibatches over slow links: planned one by one as usual, or several together, with and without kept aggregates.

    python -m benchmarks.macrobatch [--quick] [--only "100 Mb/s"] [--json FILE]

4 workers of one thread in 4 network namespaces on a switch (root and iproute2 needed), every link shaped with `tc tbf`;
a products-like synthetic graph in 4 parts, SAGE of 3 layers of 256, fan-out 15, 10, 5 from the seeds on, 2048 seeds a
step over all workers, 16 steps an epoch. The base fetches for each minibatch by itself (K = 1), keeps nothing and plans
nothing ahead, as DistDGL does. All cases run in the same processes, one after another; the first epoch is not counted.
"""

from typing import Any

from benchmarks.harness import Bench, parse
from benchmarks.hosts import ask, workers_behind_links

WORKERS, STEPS, BATCH, FANOUT = 4, 16, 2048, [15, 10, 5]
MODEL = {"name": "sage", "layers": 3, "hidden": 256}
BANDWIDTHS: tuple[float | None, ...] = (100.0, 300.0, 1000.0, None)  # Mb/s; None: as fast as the machine can
MACROBATCH_SIZES = (1, 2, 4, 8, 16)
BASE = {"macrobatch": 1, "overlap": False, "cache_aggregates": "never"}
SPEED_BAR, ROWS_BAR = 3.0, 2.0


def cases() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {"K = 1, nothing ahead": BASE}
    for size in MACROBATCH_SIZES:
        found[f"K = {size}"] = {"macrobatch": size, "cache_aggregates": "never"}
    found["K = 8, kept aggregates"] = {"macrobatch": 8, "cache_aggregates": "always"}
    found["K = 8, kept aggregates, bf16 rows"] = {
        "macrobatch": 8, "cache_aggregates": "always", "features": "bfloat16",
    }  # fmt: skip
    found["K auto, aggregates auto"] = {"macrobatch": "auto", "cache_aggregates": "auto"}
    return found


def sweep(bench: Bench, workers: list[Any], batch: int, where: str, megabits: float | None) -> None:
    found: dict[str, dict[str, float]] = {}
    for case, settings in cases().items():
        question = {"what": "epochs", "count": 1, "model": MODEL, "plan": "macrobatch", "steps": STEPS, "batch": batch}
        answers = ask(workers, {**question, "sample": {"fanout": FANOUT, **settings}})
        total = {kind: sum(answer["bytes"][kind] for answer in answers) for kind in answers[0]["bytes"]}
        result = {
            "seconds": max(answer["seconds"] for answer in answers),
            "remote_rows": sum(answer["remote"] for answer in answers),
            "features_mb": total["features"] / 1e6,
            "structure_mb": total["structure"] / 1e6,
            "gradients_mb": total["gradients"] / 1e6,
        }
        found[case] = result
        more = {"macrobatch_size": answers[0]["macrobatch_size"], "kept_aggregates": answers[0]["kept"]}
        bench.rows.append({"case": f"{where}, {case}", "megabits": megabits, **result, **more})
        print(
            f"{where:>10}, {case:<36} {result['seconds']:8.2f} s   {result['remote_rows']:>10,.0f} remote rows   "
            f"features {result['features_mb']:8.1f} MB   ids and edges {result['structure_mb']:7.1f} MB   "
            f"gradients {result['gradients_mb']:6.1f} MB   K {answers[0]['macrobatch_size']}",
            flush=True,
        )
    base = found["K = 1, nothing ahead"]
    best = min(found, key=lambda case: found[case]["seconds"])
    bench.note(f"{where}: best is {best}")
    travel = 0.0 if megabits is None else base["features_mb"] / WORKERS / (megabits / 8)
    if travel > base["seconds"] / 2:  # communication-bound
        bench.bar(f"{where}: {best} against the base", base["seconds"] / found[best]["seconds"], SPEED_BAR)
    bench.bar(
        f"{where}: remote rows of the base over those at K = 8",
        base["remote_rows"] / found["K = 8"]["remote_rows"],
        ROWS_BAR,
    )


def main() -> int:
    bench = Bench("macrobatch", parse(__doc__))
    quick = bench.options.quick
    graph, batch = ("synthetic:products?nodes=60000", BATCH // 8) if quick else ("synthetic:products", BATCH)
    with workers_behind_links(WORKERS, "benchmarks.shaped", graph, "community") as (hosts, workers):
        for megabits in (300.0,) if quick else BANDWIDTHS:
            where = "unshaped" if megabits is None else f"{megabits:g} Mb/s"
            if bench.wanted(where):
                hosts.shape(megabits)
                sweep(bench, workers, batch, where, megabits)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
