"""How much of what minibatches draw crosses parts, by the method that cut the graph.

    python -m benchmarks.presample [--quick] [--only even|aside] [--json FILE]

`synthetic:products` (600,000 vertices, 30 M directed edges; `--quick`: a tenth of it) in 4 parts, minibatches of 1,024
with fan-out 15, 10, 5. Training vertices lie everywhere (`even`) or in the last third of the classes
(`aside`). `expected` is counted over the three epochs that presample sees, `realised` over the fourth; load is the
largest part over the mean. presample takes the best of four cuts of METIS, so `metis of 4` stands beside it: of seeds
1 to 4 that which cuts the fewest edges of the whole graph.
"""

import time

from torch import Tensor

from benchmarks.harness import Bench, parse
from weft.graph import Graph, synthetic
from weft.partitioning import Touches, Traffic, assign, presample_owner, quality, traffic
from weft.sample.presample import Counting, Presample

PARTS, EPOCHS = 4, 3
METHODS = ("presample", "metis of 4", "metis", "community", "random")


def aside(graph: Graph) -> Graph:
    """The same graph with the training vertices of some classes alone."""
    assert graph.y is not None and graph.train_mask is not None
    return graph.with_vertex_data(train_mask=graph.train_mask & (graph.y >= graph.num_classes * 2 // 3))


def cut(graph: Graph, expected: Touches, method: str) -> Tensor:
    if method == "presample":
        return presample_owner(graph, expected, PARTS)
    if method != "metis of 4":
        return assign(graph, PARTS, method)
    tried = [assign(graph, PARTS, "metis", seed) for seed in (1, 2, 3, 4)]
    return min(tried, key=lambda owner: quality(graph, owner, PARTS).cut_fraction)


def compare(bench: Bench, case: str, graph: Graph) -> None:
    begin = time.perf_counter()
    counting = Counting(graph, Presample(), 0)
    expected = counting.touches(range(1, EPOCHS + 1))
    counted_seconds = time.perf_counter() - begin
    later = counting.touches([EPOCHS + 1])
    touched = float((expected.loaded > 0).double().mean()), float((expected.edges > 0).double().mean())
    bench.note(f"{case}: {touched[0]:.1%} of the vertices and {touched[1]:.1%} of the edges touched")
    realised: dict[str, Traffic] = {}
    for method in METHODS:
        begin = time.perf_counter()
        owner = cut(graph, expected, method)
        seconds = time.perf_counter() - begin + (counted_seconds if method == "presample" else 0)
        promised, realised[method] = traffic(expected, owner, PARTS), traffic(later, owner, PARTS)
        found = quality(graph, owner, PARTS)
        bench.row(
            f"{case}, {method}",
            {"time": seconds},
            expected=f"{promised.cut_fraction:.1%}",
            realised=f"{realised[method].cut_fraction:.1%}",
            load=f"{promised.balance:.3f} {realised[method].balance:.3f}",
            vertex_balance=f"{found.vertex_balance:.3f}",
            training=f"{found.train_balance:.3f}",
            all_edges=f"{found.cut_fraction:.1%}",
        )
    bench.note(f"{case}: of presample's time {counted_seconds:.1f} s are drawing and counting")
    gain = realised["metis of 4"].cut_fraction / max(1e-9, realised["presample"].cut_fraction)
    bench.bar(f"{case}: sampled edges that metis of 4 cuts over presample's", gain, 0.98)
    bench.bar(f"{case}: largest load over the mean, realised", realised["presample"].balance, 1.1, at_least=False)


def main() -> int:
    bench = Bench("presample", parse(__doc__))
    graph = synthetic("products", **({"nodes": 60_000} if bench.options.quick else {}))
    for case, made in (("even", graph), ("aside", aside(graph))):
        if bench.wanted(case):
            compare(bench, case, made)
    return bench.finish()


if __name__ == "__main__":
    raise SystemExit(main())
