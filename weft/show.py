"""What the terminal shows of graphs, partitions and runs: pairs of name and text."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft.graph import Description
from weft.partition import PartitionInfo

RELATIONS_SHOWN = 20
PLANS_SHOWN = 16
WIDTHS_SHOWN = 4  # choices of widths: the first and the last ones
Rows = list[tuple[str, str]]


def print_rows(title: str, rows: Iterable[tuple[str, str | Text]]) -> None:
    """A table of two columns; text is shown as it is, brackets included."""
    table = Table(title=Text(title), show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Text(name), Text(text) if isinstance(text, str) else text)
    Console().print(table)


def size(num_bytes: float) -> str:
    """Bytes for a person: 512 B, 3.4 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"


def graph_rows(graph: Description) -> Rows:
    kind = "undirected" if graph.undirected else "directed"
    features = "none" if not graph.num_features else f"{graph.num_features} ({graph.feature_dtype})"
    labels = "none" if not graph.num_classes else f"{graph.num_classes}{', several per vertex' * graph.multi_label}"
    rows = [
        ("vertices", f"{graph.num_nodes:,}"),
        ("directed edges", f"{graph.num_edges:,} ({kind}{', weighted' * graph.weighted})"),
        ("self-loops, repeated edges", f"{graph.self_loops:,}, {graph.duplicate_edges:,}"),
        ("vertices without in-edges", f"{graph.isolated:,}"),
        (
            "in-degree",
            f"mean {graph.degree_mean:.1f}, median {graph.degree_median}, 90 % {graph.degree_p90}, "
            f"99 % {graph.degree_p99}, largest {graph.degree_max:,}",
        ),
        ("features", features),
        ("classes", labels),
    ]
    if graph.relations:
        largest = sorted(graph.relations, key=lambda relation: -relation[1])
        rows.append(("relations", _relations([f"{name} ({count:,})" for name, count in largest])))
    if graph.num_edge_features:
        rows.append(("edge features", str(graph.num_edge_features)))
    if graph.homophily is not None:
        rows.append(("edges inside a class", f"{100 * graph.homophily:.1f} %"))
    for number, split in enumerate(graph.splits):
        name = "split" if len(graph.splits) == 1 else f"split {number}"
        rows.append((name, ", ".join(f"{key} {count:,}" for key, count in split.items() if key != "overlap" or count)))
    rows.append(("memory", f"structure {size(graph.structure_bytes)}, features {size(graph.feature_bytes)}"))
    rows.append(("fingerprint", graph.fingerprint[:16]))
    return rows


def partition_rows(info: PartitionInfo) -> Rows:
    rows = info.quality.rows()
    if info.forecast is not None:
        rows += info.forecast.rows()
    if info.num_relations:
        names = info.relation_names
        rows.append(("relations", str(info.num_relations) if names is None else _relations(names)))
    if info.num_edge_features:
        rows.append(("edge features", str(info.num_edge_features)))
    return rows


def _relations(listed: Sequence[str]) -> str:
    """How many there are, and the first of them."""
    more = f" and {len(listed) - RELATIONS_SHOWN} more" if len(listed) > RELATIONS_SHOWN else ""
    return f"{len(listed)}: {', '.join(listed[:RELATIONS_SHOWN])}{more}"


def width_rows(records: Sequence[dict[str, Any]]) -> Rows:
    """With how many bits rows travelled from then on, whenever that was chosen."""
    rows: Rows = []
    chosen = [record for record in records if "widths" in record]
    for record in chosen if len(chosen) <= WIDTHS_SHOWN else [chosen[0], *chosen[1 - WIDTHS_SHOWN :]]:
        for layer, directions in sorted(record["widths"].items()):
            for direction, counts in sorted(directions.items(), reverse=True):
                total = sum(counts.values())
                if total:
                    mean = sum(int(bits) * count for bits, count in counts.items()) / total
                    shares = ", ".join(f"{bits} bits {100 * count / total:.0f} %" for bits, count in counts.items())
                    rows.append((f"after epoch {record['epoch']}, {layer}, {direction}", f"{shares}; mean {mean:.1f}"))
    return rows


def minibatch_rows(summary: dict[str, Any]) -> Rows:
    """How a run's minibatches were planned, and where their rows came from."""
    plan, read = summary.get("minibatches"), summary["rows"]
    if plan is None:
        return []
    kept = ", aggregates of the input kept" if plan["kept_aggregates"] else ""
    read_rows = f"{read['requested']:,}, each once for those planned together {read['unique']:,}"
    came = f"{read['remote']:,} from other workers, {read['cached']:,} of theirs kept here"
    return [
        ("minibatches per epoch", f"{plan['steps']}, planned {plan['together']} at a time{kept}"),
        ("input rows per epoch", f"{read_rows}; {came}"),
    ]


def run_rows(summary: dict[str, Any]) -> Rows:
    metric, wire, times = summary["metric"], summary["wire_bytes"], summary["epoch_seconds"]
    graph = summary["graph"]
    rows = [
        ("status", summary["status"]),
        ("graph", f"{graph['name']}: {graph['num_nodes']:,} vertices, {graph['num_edges']:,} directed edges"),
        ("model", f"{summary['model']}, strategy {summary['strategy']}, {summary['workers']} worker(s)"),
    ]
    for split in ("train", "val", "test"):
        value = summary.get(f"{split}_{metric}")
        if value is not None:
            rows.append((f"{split} {metric.replace('_', ' ')}", f"{100 * value:.2f} %"))
    rows.append(("best epoch", f"{summary['best_epoch']} of {summary['epochs']}"))
    rows.append(("epoch time", f"{times['median']:.3f} s median, {times['total']:.1f} s in all"))
    assigning = summary.get("assign_seconds", 0.0)
    if assigning:
        share = 100 * assigning / max(times["total"], 1e-9)
        rows.append(("choosing widths of rows", f"{assigning:.2f} s in all, {share:.1f} % of the epochs"))
    rows.append(("on the wire per epoch", size(wire["per_epoch"])))
    rows += minibatch_rows(summary)
    cost = summary.get("cost")
    if cost:
        functions = cost["function_time"] + cost["requests"] + cost["init"]
        rows.append(
            (
                "cost of the epochs",
                f"${cost['total']:.6f}: servers {cost['graph_servers']:.6f}, functions {functions:.6f}",
            )
        )
    rows.append(("peak memory per worker", size(max(summary["peak_rss_bytes"]))))
    return rows


def print_places(found: Mapping[str, Any]) -> None:
    """A line for each place where products could be done."""
    places: Sequence[Mapping[str, Any]] = found["options"]
    title = f"where products could be done: modelled, full graph, prices of {found['prices']}"
    table = Table(title=Text(title), title_justify="left")
    for name in ("", "functions a server", "seconds", "servers $", "functions $", "total $ an epoch", "value"):
        table.add_column(name, justify="right" if name else "left")
    best = max(float(place["cost_value"]) for place in places)
    for place in places:
        functions = place["cost_function_time"] + place["cost_requests"] + place["cost_init"]
        cells = [
            str(place["functions"] or ""),
            f"{place['seconds']:.3f}",
            f"{place['cost_graph_servers']:.2e}",
            f"{functions:.2e}",
            f"{place['cost_total']:.2e}",
            f"{place['cost_value']:.3g}",
        ]
        table.add_row(Text(place["label"]), *cells, style="bold green" if place["cost_value"] == best else "")
    Console().print(table)


def print_plans(found: Mapping[str, Any]) -> None:
    """A line for each plan, the best one marked."""
    table = Table(title=Text("plans, by the modelled time of an epoch"), title_justify="left")
    columns = ("plan", "rows a step", "remote", "edges a step", "MB an epoch", "waits a step", "imbalance", "memory")
    for name in (*columns, "seconds"):
        table.add_column(name, justify="left" if name == "plan" else "right")
    ranked = sorted(found["plans"], key=lambda plan: (not plan["fits"], float(plan["seconds"])))
    for plan in ranked[:PLANS_SHOWN]:
        best = plan["label"] == found["best"]
        numbers = [
            *(f"{plan[name]:,.0f}" for name in ("rows", "remote", "edges")),
            f"{plan['megabytes']:,.1f}",
            f"{plan['rounds']:.1f}",
            f"{plan['imbalance']:.2f}",
            size(plan["memory_bytes"]) + ("" if plan["fits"] else ", too much"),
            f"{plan['seconds']:.3f}",
        ]
        table.add_row(Text(plan["label"]), *numbers, style="bold green" if best else "" if plan["fits"] else "dim")
    console = Console()
    console.print(table)
    if len(ranked) > PLANS_SHOWN:
        console.print(f"{len(ranked) - PLANS_SHOWN} slower ones are left out (--json has all)", highlight=False)
    links = f"{found['megabits']:,.0f} Mb/s, {1e3 * found['latency_seconds']:.2f} ms"
    console.print(f"best: {found['best']}   (links of {links})", highlight=False)
