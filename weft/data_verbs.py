"""The verbs before training: a graph from your files, and parts of a graph or of edge files."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from weft.errors import UserError

if TYPE_CHECKING:
    from weft.partition import PartitionInfo

console = Console()

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder or file to write.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


def ingest(
    source: Annotated[str, typer.Argument(help="Edge list (csv, tsv, parquet, npy, npz), data set folder, or name.")],
    out: Out,
    features: Annotated[Path | None, typer.Option(help="Vertex features: csv, parquet, npy or npz.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Vertex labels: csv, parquet, npy or npz.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Split file, or random:0.6,0.2@SEED (train, validation), or planetoid@SEED.")
    ] = None,
    src_column: Annotated[str | None, typer.Option(help="Column of the edges' sources.")] = None,
    dst_column: Annotated[str | None, typer.Option(help="Column of the edges' destinations.")] = None,
    weight_column: Annotated[str | None, typer.Option(help="Column of the edges' weights.")] = None,
    relation_column: Annotated[
        str | None, typer.Option(help="Column of the edges' relations (kinds), integers or names.")
    ] = None,
    edge_features: Annotated[
        str | None, typer.Option(help="Columns of the edges' features, with commas between them.")
    ] = None,
    id_column: Annotated[str | None, typer.Option(help="Column of the vertices' ids in the vertex files.")] = None,
    label_column: Annotated[
        list[str] | None, typer.Option(help="Column of the labels; several make several labels per vertex.")
    ] = None,
    split_column: Annotated[str | None, typer.Option(help="Column that says train, val or test.")] = None,
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether text files name columns.")
    ] = None,
    num_nodes: Annotated[int | None, typer.Option(help="Vertices are 0..N-1, also those without edges.")] = None,
    num_classes: Annotated[int | None, typer.Option(help="Where the labels do not show every class.")] = None,
    undirected: Annotated[bool, typer.Option("--undirected", help="Add every edge's reverse.")] = False,
    drop_duplicates: Annotated[
        bool, typer.Option("--drop-duplicates", help="Keep one of several equal edges.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Name of the graph.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Read a graph from your files into a graph folder.

    Ids may be any integers or strings; they come back in what 'weft export' writes.

    [dim]weft ingest edges.csv --features x.parquet --labels y.csv --split random:0.6,0.2@0 --undirected -o g[/dim]
    """
    from weft.graph import describe, save_graph
    from weft.graph import ingest as read
    from weft.show import graph_rows, print_rows

    if out.exists() and not overwrite:
        raise UserError(f"{out} exists already: remove it, choose another --out, or pass --overwrite")
    graph = read(
        source, features=features, labels=labels, split=split, src_column=src_column, dst_column=dst_column,
        weight_column=weight_column, relation_column=relation_column,
        edge_features=tuple(edge_features.split(",")) if edge_features else (),
        id_column=id_column, label_columns=tuple(label_column or ()),
        split_column=split_column, header=header, num_nodes=num_nodes, num_classes=num_classes,
        undirected=undirected, drop_duplicates=drop_duplicates, name=name,
    )  # fmt: skip
    save_graph(graph, out, overwrite=overwrite)
    print_rows(f"graph {graph.name}", graph_rows(describe(graph)))
    console.print(f"written to {out}", highlight=False, soft_wrap=True)


def partition(
    source: Annotated[str, typer.Argument(help="Graph folder, .npz file, data set name; or edge files (see above).")],
    parts: Annotated[int, typer.Option("--parts", "-p", min=1, help="How many parts (at least one per worker).")],
    out: Out,
    method: Annotated[
        str,
        typer.Option(
            help="Of a graph: auto, metis (best cut), presample (METIS by what minibatches use; see below), stream "
            "(one pass), community, random. Of edge files: auto or stream (vertices join their neighbours), range "
            "(of ids, even in edges), hash (of ids)."
        ),
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Of the method's choices.")] = 0,
    presample_epochs: Annotated[
        int | None, typer.Option(min=1, help="presample: epochs that are drawn and counted; 3 unless given.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="presample: training vertices of a minibatch; 1024 unless given.")
    ] = None,
    fanout: Annotated[
        str | None, typer.Option(help="presample: neighbours drawn at each hop, -1: all; 15,10,5 unless given.")
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="Edge files: .npy [N, F], float32 or float16, or bfloat16 as int16.")
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="Edge files: .npy [N], -1 unknown, or [N, C] of 0 and 1.")] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Edge files: random:0.6,0.2@SEED (train, validation), TRAIN.npy,VAL.npy,TEST.npy (masks or numbers of "
            "vertices), or one .npz with such arrays."
        ),
    ] = None,
    src_column: Annotated[str | None, typer.Option(help="Edge tables: column of the sources.")] = None,
    dst_column: Annotated[str | None, typer.Option(help="Edge tables: column of the destinations.")] = None,
    weight_column: Annotated[
        str | None, typer.Option(help="Edge tables: column of the weights; beside .npy edges a .npy file.")
    ] = None,
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Whether an edge table of text names its columns.")
    ] = None,
    num_nodes: Annotated[int | None, typer.Option(min=1, help="Edge files: N, if no other file says so.")] = None,
    num_classes: Annotated[int | None, typer.Option(min=1, help="Edge files: if labels do not show all.")] = None,
    undirected: Annotated[bool, typer.Option("--undirected", help="Edge files: add every edge's reverse.")] = False,
    name: Annotated[str | None, typer.Option(help="Edge files: name of the graph.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Edge files: processes that share the work.")] = None,
    memory: Annotated[str | None, typer.Option(help="Edge files: what each worker may use; 2G unless given.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Cut a graph into parts that workers load by themselves.

    [dim]weft partition my-graph --parts 4 --out my-parts[/dim]

    For training on minibatches, 'presample' draws those of a few epochs
    first. An edge weighs as often as it is to be drawn, a vertex as much as
    it makes workers compute and read; what is never drawn is cut for free.
    Give the --batch, --fanout and --seed that you will train with; what the
    next epoch's minibatches make of the parts is shown beside.

    [dim]weft partition my-graph --parts 4 --method presample --fanout 15,10,5 --out my-parts[/dim]

    A graph that no process can hold is cut straight from its edge files:
    .npy ([2, E], [E, 2], or SRC.npy,DST.npy), .parquet or .csv with two
    columns, or a folder of such files. Vertices are numbered 0..N-1 (for
    other ids run 'weft ingest' first), and row k of the features and labels
    is about vertex k. Each worker reads its slice in chunks and keeps within
    --memory; meanwhile edges lie on disk beside --out, 8 bytes each.

    [dim]weft partition edges.npy --features x.npy --labels y.npy --parts 8 \\
      --split random:0.6,0.2@0 --workers 4 --memory 2G --out my-parts[/dim]
    """
    from weft.external import find_edge_files
    from weft.show import partition_rows, print_rows

    options = {
        "features": features, "labels": labels, "split": split, "src_column": src_column, "dst_column": dst_column,
        "weight_column": weight_column, "header": header, "num_nodes": num_nodes, "num_classes": num_classes,
        "undirected": undirected or None, "name": name, "workers": workers, "memory": memory,
    }  # fmt: skip
    given = {key: value for key, value in options.items() if value is not None}
    minibatches = {"presample_epochs": presample_epochs, "batch": batch, "fanout": fanout}
    drawn = {key: value for key, value in minibatches.items() if value is not None}
    if drawn and method != "presample":
        raise UserError(f"{_options(drawn)} is for --method presample: leave it out, or give that method")
    edges = find_edge_files(source)
    if edges:
        info = _partition_files(edges, parts, out, method, seed, overwrite, given)
    else:
        info = _partition_graph(source, parts, out, method, seed, overwrite, given, drawn)
    if os.environ.get("RANK", "0") == "0":
        print_rows(f"partition of {info.graph_name}", partition_rows(info))
        console.print(f"written to {out}", highlight=False, soft_wrap=True)


def _partition_graph(
    source: str,
    parts: int,
    out: Path,
    method: str,
    seed: int,
    overwrite: bool,
    given: dict[str, Any],
    drawn: dict[str, Any],
) -> "PartitionInfo":
    from weft.graph.progress import terminal
    from weft.prepare import partition as cut
    from weft.sample import Presample

    if given:
        raise UserError(
            f"{source} is no edge file, so that {_options(given)} cannot be given with it: leave that out, or give the "
            "edges as .npy, .parquet or .csv"
        )
    if "presample_epochs" in drawn:
        drawn["epochs"] = drawn.pop("presample_epochs")
    if "fanout" in drawn:
        drawn["fanouts"] = _numbers("--fanout", drawn.pop("fanout"))
    presample = Presample(**drawn)
    with terminal.status(f"cutting {source} into {parts} parts ({method})"):
        return cut(source, parts, out, method, seed, overwrite, presample)


def _options(given: dict[str, Any]) -> str:
    return ", ".join(f"--{key.replace('_', '-')}" for key in given)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise UserError(f"{option} {text} is not understood: give numbers with commas between them, 15,10,5") from None


def _partition_files(
    edges: tuple[Path, ...],
    parts: int,
    out: Path,
    method: str,
    seed: int,
    overwrite: bool,
    given: dict[str, Any],
) -> "PartitionInfo":
    from weft.divide import partition_files
    from weft.external import Job, parse_bytes
    from weft.graph.edgelist import EdgeColumns
    from weft.show import print_rows, size

    columns = EdgeColumns(*(given.pop(f"{end}_column", None) for end in ("src", "dst", "weight")))
    workers = given.pop("workers", 1)
    if "memory" in given:
        given["memory_bytes"] = parse_bytes(given.pop("memory"))
    given.setdefault("name", edges[0].name.partition(".")[0])
    job = Job(
        edges=edges, parts=parts, method="stream" if method == "auto" else method, seed=seed, columns=columns, **given
    )
    outcome = partition_files(job, out, workers, overwrite)
    steps = ", ".join(f"{step} {seconds:.1f}" for step, seconds in outcome.seconds.items())
    took = [
        ("time", f"{sum(outcome.seconds.values()):.1f} s ({steps})"),
        ("peak memory per worker", size(max(outcome.peak_rss_bytes))),
        ("blocks", str(outcome.num_blocks)),
    ]
    if os.environ.get("RANK", "0") == "0":
        print_rows("what it took", took)
    return outcome.info
