"""What the terminal shows of graphs, partitions and runs: pairs of name and text."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft.disk.space import size
from weft.graph import Description
from weft.graph.preparation import Decision, Preparation
from weft.graph.times import text_of
from weft.graph.types import GraphTypes, VertexType
from weft.partitioning import PartitionInfo

RELATIONS_SHOWN = 20
CATEGORIES_SHOWN = 4
CHOICES_SHOWN = 4  # choices of bits: the first and the last ones
PLAIN_METRICS = ("rmse", "mae", "r2", "mrr")  # that are no shares
Rows = list[tuple[str, str]]


def print_rows(title: str, rows: Iterable[tuple[str, str | Text]]) -> None:
    """A table of two columns; text is shown as it is, brackets included."""
    table = Table(title=Text(title), show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Text(name), Text(text) if isinstance(text, str) else text)
    Console().print(table)


def output_rows(vertices: int, counts: Mapping[str, int], accuracy: float | None) -> Rows:
    """What a model said of vertices: how many it gave each class, and how many of the known ones it got right."""
    shares = [
        (f"class {name}", f"{count:,} ({100 * count / max(1, vertices):.1f} %)") for name, count in counts.items()
    ]
    known = [] if accuracy is None else [("accuracy where a label is known", f"{100 * accuracy:.2f} %")]
    return [("vertices", f"{vertices:,}"), *shares, *known]


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
        ("features", "by type" if graph.types else features),
        ("numbers to predict", str(graph.num_targets)) if graph.num_targets else ("classes", labels),
    ]
    if graph.preparation is None and graph.feature_moments is not None:
        mean, spread, most = graph.feature_moments
        rows.append(("feature values", f"mean {mean:.4g}, spread {spread:.4g}, largest size {most:.4g}"))
    if graph.types:
        rows.append(("types of vertices", ", ".join(_type(kind, graph.target) for kind in graph.types)))
    if graph.relations:
        largest = sorted(graph.relations, key=lambda relation: -relation[1])
        rows.append(("relations", _relations([f"{name} ({count:,})" for name, count in largest])))
    if graph.num_edge_features:
        rows.append(("edge features", str(graph.num_edge_features)))
    if graph.edge_times is not None:
        rows.append(("edge times", _span(graph.edge_times, "edges" in graph.dates)))
    if graph.vertex_times is not None:
        *span, known = graph.vertex_times
        rows.append(("vertex times", f"{_span(span, 'vertices' in graph.dates)}, of {known:,} vertices"))
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
    if info.types is not None:
        target = None if info.types.target is None else info.types.names[info.types.target]
        rows.append(("types of vertices", ", ".join(_type(kind, target) for kind in info.types.vertices)))
    if info.num_relations:
        names = info.relation_names
        rows.append(("relations", str(info.num_relations) if names is None else _relations(names)))
    if info.num_edge_features:
        rows.append(("edge features", str(info.num_edge_features)))
    return rows


def _span(ends: Sequence[float], are_dates: bool) -> str:
    """The first and the last of some times."""
    return " to ".join(text_of(time, are_dates) for time in ends)


def _type(kind: VertexType, target: str | None) -> str:
    """How many vertices of a type there are, and what they have."""
    width = f"{kind.num_features} features" if kind.num_features else "learned rows"
    return f"{kind.name} ({kind.count:,}, {width}{', the target' * (kind.name == target)})"


def _relations(listed: Sequence[str]) -> str:
    """How many there are, and the first of them."""
    more = f" and {len(listed) - RELATIONS_SHOWN} more" if len(listed) > RELATIONS_SHOWN else ""
    return f"{len(listed)}: {', '.join(listed[:RELATIONS_SHOWN])}{more}"


def print_preparations(found: Preparation | None, types: GraphTypes | Sequence[VertexType] | None) -> None:
    """As `print_preparation`, of all vertices or of each type."""
    print_preparation(found)
    for kind in types.vertices if isinstance(types, GraphTypes) else types or ():
        print_preparation(kind.preparation, f" of type {kind.name}")


def print_preparation(found: Preparation | None, whose: str = "") -> None:
    """A line for each column that features were made of, and what the user should know about them; None: nothing."""
    if found is None:
        return
    if found.decisions:
        of = "training vertices" if found.of_training else "rows: there is no training split"
        title = f"features{whose}: {found.num_features} columns of {found.source}, by {found.num_rows:,} {of}"
        table = Table(title=Text(title), title_justify="left")
        for name in ("column", "holds", "becomes", "mean", "spread", "missing"):
            table.add_column(
                name, justify="right" if name in ("mean", "spread", "missing") else "left", overflow="fold"
            )
        for one in found.decisions:
            table.add_row(Text(one.column), one.holds, Text(_becomes(one)), *_statistics(one))
        Console().print(table)
    for note in found.notes:
        print_warning(note)


def print_warning(text: str) -> None:
    """A line on stderr."""
    Console(stderr=True).print(Text.assemble(("warning ", "bold yellow"), text), soft_wrap=True)


def _becomes(decision: Decision) -> str:
    """What becomes of a column, and how many columns of the features that are."""
    if decision.becomes == "nothing":
        text = f"left out: {decision.why}"
    elif decision.becomes == "unchanged":
        text = "unchanged" if decision.size == 1 else f"{decision.size} unchanged"
    elif decision.becomes == "one-hot":
        shown = ", ".join(decision.categories[:CATEGORIES_SHOWN])
        text = f"{decision.size} one-hot ({shown}{', ...' if decision.size > CATEGORIES_SHOWN else ''})"
    elif decision.becomes == "learned":
        text = f"a learned row for each of {len(decision.categories):,} values, one for all others"
    elif decision.becomes == "hashed":
        text = f"{decision.size} hashed"
    else:
        text = {"flag": "0 or 1", "logarithm": "logarithm, standardised"}.get(decision.becomes, decision.becomes)
    return f"{text}; 1 where it is missing" if decision.indicator else text


def _statistics(decision: Decision) -> tuple[str, str, str]:
    mean, spread = decision.mean, decision.spread
    shown = "" if mean is None else f"{mean:.4g}"
    if decision.holds == "dates" and mean is not None:
        shown = str(np.datetime64(round(mean), "D"))
    unit = " days" if decision.holds == "dates" else ""
    missing = f"{100 * decision.missing:.1f} %" if decision.missing else ""
    return shown, "" if spread is None else f"{spread:.4g}{unit}", missing


def bits_rows(records: Sequence[dict[str, Any]]) -> Rows:
    """With how many bits rows travelled from then on, whenever that was chosen."""
    rows: Rows = []
    chosen = [record for record in records if "bits" in record]
    for record in chosen if len(chosen) <= CHOICES_SHOWN else [chosen[0], *chosen[1 - CHOICES_SHOWN :]]:
        for layer, directions in sorted(record["bits"].items()):
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
        ("minibatches per epoch", f"{plan['steps']}, planned {plan['macrobatch_size']} at a time{kept}"),
        ("input rows per epoch", f"{read_rows}; {came}"),
    ]


def metric_text(metric: str, value: float) -> str:
    """A value as people read it: shares as per cent, errors in the unit of what is predicted."""
    return f"{value:.4g}" if metric in PLAIN_METRICS else f"{100 * value:.2f} %"


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
            rows.append((f"{split} {metric.replace('_', ' ')}", metric_text(metric, value)))
    rows.append(("best epoch", f"{summary['best_epoch']} of {summary['epochs']}"))
    rows.append(("epoch time", f"{times['median']:.3f} s median, {times['total']:.1f} s in all"))
    assigning = summary.get("assign_seconds", 0.0)
    if assigning:
        share = 100 * assigning / max(times["total"], 1e-9)
        rows.append(("choosing bits of rows", f"{assigning:.2f} s in all, {share:.1f} % of the epochs"))
    rows.append(("on the wire per epoch", size(wire["per_epoch"])))
    rows += minibatch_rows(summary)
    cost = summary.get("cost")
    if cost:
        functions = cost["function_time"] + cost["requests"] + cost["init"]
        rows.append(
            (
                "cost of the epochs",
                f"{dollars(cost['total'])}: servers {dollars(cost['graph_servers'])}, functions {dollars(functions)}",
            )
        )
    rows.append(("peak memory per worker", size(max(summary["peak_rss_bytes"]))))
    if "peak_gpu_bytes" in summary:
        rows.append(("peak GPU memory per worker", size(max(summary["peak_gpu_bytes"]))))
    rows += [("warning", note) for note in summary.get("notes", ())]
    return rows


def dollars(amount: float) -> str:
    """US dollars in plain figures: cents, and three significant digits of what is less than a dollar."""
    if amount == 0:
        return "$0"
    decimals = 2 if amount >= 1 else 2 - math.floor(math.log10(amount))
    return f"${amount:,.{decimals}f}"
