"""One minibatch for all workers, over slow links: data parallel, macrobatch, split and both, and what auto chooses.

    python -m benchmarks.split [--quick] [--only "sage, 100 Mb/s"] [--json FILE]

4 workers of one thread in 4 network namespaces on a switch (root and iproute2 needed), every link shaped with `tc tbf`.
SAGE and GAT of 3 layers of 256 on `synthetic:products` in 4 parts, fan-out 15, 15, 15, 1024 seeds a step over all
workers, epochs of 8 steps. "data parallel" draws and fetches minibatch by minibatch, each worker its own. "auto" is
what `weft train --strategy auto` would take of plans for minibatches, from counts and from links that it measures; its
bar is its time over that of the best measured.
"""

from typing import Any

from benchmarks.harness import Bench, parse
from benchmarks.hosts import ask, workers_behind_links

WORKERS, STEPS, BATCH, FANOUT = 4, 8, 1024, [15, 15, 15]
MODELS = {
    "sage": {"name": "sage", "layers": 3, "hidden": 256},
    "gat": {"name": "gat", "layers": 3, "hidden": 64, "heads": 4},
}
BANDWIDTHS: tuple[float | None, ...] = (100.0, 300.0, 1000.0, None)  # Mb/s; None: as fast as the machine can
SPEED_BAR, AUTO_BAR = 2.0, 1.1
PLANS = {"minibatch": "independent", "batchgnn": "macrobatch", "gsplit": "split"}


def cases(model: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """By name: the plan, and how it samples. Kept aggregates are for models that allow them."""
    never = {"cache_aggregates": "never"}
    found: dict[str, tuple[str, dict[str, Any]]] = {
        "data parallel": ("independent", never),
        "macrobatch K = 8": ("macrobatch", {"macrobatch": 8, **never}),
        "split": ("split", {"macrobatch": 1, **never}),
        "split K = 8": ("split", {"macrobatch": 8, **never}),
        "split K = 8, 1 hop alone": ("split", {"macrobatch": 8, "alone_hops": 1, **never}),
    }
    if model != "gat":
        found["macrobatch K = 8, kept"] = ("macrobatch", {"macrobatch": 8, "cache_aggregates": "always"})
        found["split K = 8, kept"] = ("split", {"macrobatch": 8, "cache_aggregates": "always"})
    return found


def measure(workers: list[Any], model: str, batch: int, plan: str, sample: dict[str, Any]) -> dict[str, Any]:
    question = {"what": "epochs", "count": 2, "model": MODELS[model], "plan": plan, "steps": STEPS, "batch": batch}
    answers = ask(workers, {**question, "sample": {"fanout": FANOUT, **sample}})
    megabytes = {f"{kind}_mb": sum(answer["bytes"][kind] for answer in answers) / 1e6 for kind in answers[0]["bytes"]}
    remote = sum(answer["remote"] for answer in answers)
    return {"seconds": max(answer["seconds"] for answer in answers), "remote_rows": remote, **megabytes}


def sweep(bench: Bench, workers: list[Any], model: str, batch: int, megabits: float | None) -> None:
    where = f"{model}, unshaped" if megabits is None else f"{model}, {megabits:g} Mb/s"
    if not bench.wanted(where):
        return
    found: dict[str, dict[str, Any]] = {}
    question = {"what": "plans", "model": MODELS[model], "steps": STEPS, "batch": batch, "sample": {"fanout": FANOUT}}
    chosen = ask(workers, question)[0]
    auto = PLANS[chosen["strategy"]], {key: value for key, value in chosen["sample"].items() if value}
    plans = cases(model)
    same = next((case for case, what in plans.items() if what == auto), None)  # measured as it is
    for case, (plan, sample) in (plans if same else plans | {"auto": auto}).items():
        result = found[case] = measure(workers, model, batch, plan, sample)
        bench.rows.append({"case": f"{where}, {case}", "megabits": megabits, **result})
        print(
            f"{where:>16}, {case:<28} {result['seconds']:8.2f} s   {result['remote_rows']:>9,.0f} remote rows   "
            f"features {result['features_mb']:7.1f} MB   ids and edges {result['structure_mb']:6.1f} MB   "
            f"hidden {result['hidden_mb']:7.1f} MB",
            flush=True,
        )
    base = found["data parallel"]
    best = min(found, key=lambda case: float(found[case]["seconds"]))
    travel = 0.0 if megabits is None else base["features_mb"] / WORKERS / (megabits / 8)
    bench.note(f"{where}: best is {best}; auto takes {chosen['best']}, links measured at {chosen['megabits']:.0f} Mb/s")
    if travel > base["seconds"] / 2:  # communication-bound
        bench.bar(f"{where}: {best} against data parallel", base["seconds"] / found[best]["seconds"], SPEED_BAR)
    over = found[same or "auto"]["seconds"] / found[best]["seconds"]
    bench.bar(f"{where}: auto over the best", over, AUTO_BAR, at_least=False)


def main() -> int:
    bench = Bench("split", parse(__doc__))
    quick = bench.options.quick
    graph = "synthetic:products?nodes=60000" if quick else "synthetic:products"
    with workers_behind_links(WORKERS, "benchmarks.shaped", graph, "community") as (hosts, workers):
        for megabits in (300.0,) if quick else BANDWIDTHS:
            hosts.shape(megabits)
            for model in MODELS:
                sweep(bench, workers, model, BATCH // 4 if quick else BATCH, megabits)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
