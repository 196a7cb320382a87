"""The verbs before training: a graph from your files, and parts of a graph or of edge files."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from weft.cli.options import (
    EDGE_FILES,
    FEATURE_COLUMNS,
    CategoryColumns,
    DstColumn,
    EdgeFeatures,
    FeatureColumns,
    GraphName,
    Header,
    IdColumn,
    IgnoreColumns,
    LabelColumn,
    LabelKind,
    LearnedColumns,
    LogColumns,
    NumClasses,
    NumNodes,
    Out,
    Overwrite,
    PreparedAs,
    RawFeatures,
    RelationColumn,
    SplitColumn,
    SrcColumn,
    TimeColumn,
    Undirected,
    VertexData,
    VertexTimeColumn,
    WeightColumn,
)
from weft.cli.verb import FILE_METHODS, METHODS
from weft.errors import UserError

if TYPE_CHECKING:
    from weft.graph.preparation import Preparation
    from weft.graph.types import GraphTypes
    from weft.partitioning import PartitionInfo

console = Console()
MINIBATCHES = "Minibatches (--method presample)"


def ingest(
    source: Annotated[
        str, typer.Argument(help="Edge list (csv, tsv, parquet, npy, npz), graph.yaml, data set folder, or name.")
    ],
    out: Out,
    features: Annotated[Path | None, typer.Option(help="Vertex features: csv, parquet, npy or npz.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Vertex labels: csv, parquet, npy or npz.")] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Split file, random:0.6,0.2@SEED (train, validation), planetoid@SEED, or time:0.8,0.1."),
    ] = None,
    vertex_data: VertexData = None,
    src_column: SrcColumn = None,
    dst_column: DstColumn = None,
    weight_column: WeightColumn = None,
    relation_column: RelationColumn = None,
    time_column: TimeColumn = None,
    vertex_time_column: VertexTimeColumn = None,
    edge_features: EdgeFeatures = None,
    id_column: IdColumn = None,
    label_column: LabelColumn = None,
    label_kind: LabelKind = None,
    split_column: SplitColumn = None,
    feature_columns: FeatureColumns = None,
    ignore_columns: IgnoreColumns = None,
    category_columns: CategoryColumns = None,
    learned_columns: LearnedColumns = None,
    log_columns: LogColumns = None,
    raw_features: RawFeatures = False,
    prepared_as: PreparedAs = None,
    missing_rows: Annotated[
        str,
        typer.Option(
            help="Ids without a row of features: error, zero (features of zeros), or drop (with their edges).",
            rich_help_panel=FEATURE_COLUMNS,
        ),
    ] = "error",
    header: Header = None,
    num_nodes: NumNodes = None,
    num_classes: NumClasses = None,
    undirected: Undirected = False,
    drop_duplicates: Annotated[
        bool,
        typer.Option("--drop-duplicates", help="Keep one of several equal edges.", rich_help_panel=EDGE_FILES),
    ] = False,
    name: GraphName = None,
    overwrite: Overwrite = False,
) -> None:
    """Read a graph from your files into a graph folder.

    Ids may be any integers or strings; they come back in what 'weft export' writes.

    The columns of a table of features are prepared: numbers and dates are
    standardised, categories get a column each, missing values a column that
    marks them, all by the values of the training vertices. Each decision is
    shown, kept in the folder, and holds for new rows. Arrays and columns of
    lists stay as they are.

    [dim]weft ingest edges.csv --features x.parquet --labels y.csv --split random:0.6,0.2@0 --undirected -o g[/dim]

    Vertices of several types, each with a table of its own, and edges of
    several relations are described in a file (docs/types.md).

    [dim]weft ingest graph.yaml -o g[/dim]
    """
    from weft.cli.show import graph_rows, print_preparations, print_rows
    from weft.graph import describe, save_graph
    from weft.graph import ingest as read
    from weft.graph.files import check_own

    if os.path.lexists(out):  # before the long work
        if not overwrite:
            raise UserError(f"{out} exists already: remove it, choose another --out, or pass --overwrite")
        check_own(out, "graph")
    graph = read(
        source, features=features, labels=labels, split=split, vertex_data=_files_by_name(vertex_data),
        src_column=src_column, dst_column=dst_column,
        weight_column=weight_column, relation_column=relation_column,
        time_column=time_column, vertex_time_column=vertex_time_column,
        edge_features=_names(edge_features),
        feature_columns=_names(feature_columns), ignore_columns=_names(ignore_columns),
        category_columns=_names(category_columns), learned_columns=_names(learned_columns),
        log_columns=_names(log_columns),
        raw_features=raw_features, prepared_as=_preparation_of(prepared_as), missing_rows=missing_rows,
        id_column=id_column, label_columns=tuple(label_column or ()),
        split_column=split_column, header=header, num_nodes=num_nodes, num_classes=num_classes,
        undirected=undirected, drop_duplicates=drop_duplicates, name=name,
        **({} if label_kind is None else {"label_kind": label_kind}),
    )  # fmt: skip
    save_graph(graph, out, overwrite=overwrite)
    print_rows(f"graph {graph.name}", graph_rows(describe(graph)))
    print_preparations(graph.preparation, graph.types)
    console.print(f"written to {out}", highlight=False, soft_wrap=True)


def partition(
    source: Annotated[str, typer.Argument(help="Graph folder, .npz file, data set name; or edge files (see above).")],
    parts: Annotated[int, typer.Option("--parts", "-p", min=1, help="How many parts (at least one per worker).")],
    out: Out,
    method: Annotated[
        str,
        typer.Option(help=f"Of a graph: auto, {METHODS}. Of edge files: auto, {FILE_METHODS}."),
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Of the method's choices.")] = 0,
    presample_epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Epochs that are drawn and counted; 3 unless given.", rich_help_panel=MINIBATCHES),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Training vertices of a minibatch; 1024 unless given.", rich_help_panel=MINIBATCHES),
    ] = None,
    fanout: Annotated[
        str | None,
        typer.Option(help="Neighbours drawn at each hop, -1: all; 15,10,5 unless given.", rich_help_panel=MINIBATCHES),
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(
            help="csv or parquet, a row for each vertex; or .npy [N, F], float32, float16, or bfloat16 as int16.",
            rich_help_panel=EDGE_FILES,
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help=".npy [N], -1 unknown, or [N, C] of 0 and 1; or numbers, NaN unknown.", rich_help_panel=EDGE_FILES
        ),
    ] = None,
    label_kind: LabelKind = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="random:0.6,0.2@SEED (train, validation), time:0.8,0.1, TRAIN.npy,VAL.npy,TEST.npy (masks or numbers "
            "of vertices), or one .npz with such arrays.",
            rich_help_panel=EDGE_FILES,
        ),
    ] = None,
    vertex_data: VertexData = None,
    id_column: IdColumn = None,
    label_column: LabelColumn = None,
    split_column: SplitColumn = None,
    feature_columns: FeatureColumns = None,
    ignore_columns: IgnoreColumns = None,
    category_columns: CategoryColumns = None,
    learned_columns: LearnedColumns = None,
    log_columns: LogColumns = None,
    raw_features: RawFeatures = False,
    src_column: SrcColumn = None,
    dst_column: DstColumn = None,
    weight_column: WeightColumn = None,
    time_column: TimeColumn = None,
    vertex_time_column: VertexTimeColumn = None,
    header: Header = None,
    num_nodes: NumNodes = None,
    num_classes: NumClasses = None,
    undirected: Undirected = False,
    name: GraphName = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that share the work.", rich_help_panel=EDGE_FILES)
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory that each worker may use; 2G unless given.", rich_help_panel=EDGE_FILES)
    ] = None,
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
    is about vertex k. The columns of a csv or parquet file of features are
    prepared as by 'weft ingest', batch by batch, and may hold labels and
    split too. Each worker reads its slice in chunks and keeps within
    --memory; meanwhile edges lie on disk beside --out, 8 bytes each, 16 with
    times.

    [dim]weft partition edges.npy --features x.npy --labels y.npy --parts 8 \\
      --split random:0.6,0.2@0 --workers 4 --memory 2G --out my-parts[/dim]
    """
    from weft.cli.show import partition_rows, print_preparation, print_rows
    from weft.out_of_core import find_edge_files
    from weft.partitioning import list_partitioners

    options = {
        "features": features, "labels": labels, "split": split, "src_column": src_column, "dst_column": dst_column,
        "weight_column": weight_column, "time_column": time_column, "vertex_time_column": vertex_time_column,
        "header": header, "num_nodes": num_nodes, "num_classes": num_classes,
        "undirected": undirected or None, "name": name, "workers": workers, "memory": memory,
        "vertex_data": _files_by_name(vertex_data) or None, "id_column": id_column,
        "label_column": tuple(label_column) if label_column else None, "split_column": split_column,
        "feature_columns": _names(feature_columns) or None, "ignore_columns": _names(ignore_columns) or None,
        "category_columns": _names(category_columns) or None, "learned_columns": _names(learned_columns) or None,
        "log_columns": _names(log_columns) or None,
        "raw_features": raw_features or None, "label_kind": label_kind,
    }  # fmt: skip
    given = {key: value for key, value in options.items() if value is not None}
    minibatches = {"presample_epochs": presample_epochs, "batch": batch, "fanout": fanout}
    drawn = {key: value for key, value in minibatches.items() if value is not None}
    if drawn and not any(method == one.name and one.requires.minibatches for one in list_partitioners()):
        fitting = " or ".join(one.name for one in list_partitioners() if one.requires.minibatches)
        raise UserError(f"{_options(drawn)} is for --method {fitting}: leave it out, or give that method")
    edges = find_edge_files(source)
    if edges:
        info = _partition_files(edges, parts, out, method, seed, overwrite, given)
    else:
        info = _partition_graph(source, parts, out, method, seed, overwrite, given, drawn)
    if os.environ.get("RANK", "0") == "0":
        print_rows(f"partition of {info.graph_name}", partition_rows(info))
        if edges:
            print_preparation(info.preparation)
        console.print(f"written to {out}", highlight=False, soft_wrap=True)


def _preparation_of(folder: Path | None) -> "Preparation | GraphTypes | None":
    """How the features of the graph in a folder were made, of several types all of them; None: no folder is given."""
    from weft.graph import load_graph
    from weft.partitioning import read_partition
    from weft.prepare import folder_kind

    if folder is None:
        return None
    graph = read_partition(folder) if folder_kind(folder) == "partition" else load_graph(folder)
    found = graph.types or graph.preparation
    if found is None:
        raise UserError(
            f"{folder} does not say how its features were made: ingest it again, or leave --prepared-as out"
        )
    return found


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


def _names(text: str | None) -> tuple[str, ...]:
    """Columns, as an option names them."""
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


def _files_by_name(given: list[str] | None) -> dict[str, Path]:
    files = {}
    for text in given or []:
        name, equals, file = text.partition("=")
        if not equals or not name or not file:
            raise UserError(f"--vertex-data {text} is not understood: give NAME=FILE.npy")
        files[name] = Path(file)
    return files


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
    from weft.cli.show import print_rows
    from weft.disk.space import size
    from weft.graph.edgelist import EdgeColumns
    from weft.graph.preparation import FeatureChoices
    from weft.out_of_core import Job, parse_bytes
    from weft.out_of_core.workers import partition_files

    columns = EdgeColumns(**{end: given.pop(f"{end}_column", None) for end in ("src", "dst", "weight", "time")})
    chosen = {"features": "feature_columns", "ignored": "ignore_columns", "categories": "category_columns",
              "learned": "learned_columns",
              "logarithms": "log_columns", "raw": "raw_features"}  # fmt: skip
    choices = FeatureChoices(**{name: given.pop(option) for name, option in chosen.items() if option in given})
    if "label_column" in given:
        given["label_columns"] = given.pop("label_column")
    workers = given.pop("workers", 1)
    if "memory" in given:
        given["memory_bytes"] = parse_bytes(given.pop("memory"))
    given.setdefault("name", edges[0].name.partition(".")[0])
    job = Job(edges=edges, parts=parts, method=method, seed=seed, columns=columns, choices=choices, **given)
    outcome = partition_files(job, out, workers, overwrite)
    steps = ", ".join(f"{step} {seconds:.1f}" for step, seconds in outcome.seconds.items())
    took = [
        ("time", f"{sum(outcome.seconds.values()):.1f} s ({steps})"),
        ("peak memory per worker", size(max(outcome.peak_rss_bytes))),
        ("buckets", str(outcome.num_buckets)),
    ]
    if os.environ.get("RANK", "0") == "0":
        print_rows("what it took", took)
    return outcome.info
