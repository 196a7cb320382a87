"""The verbs about what is there: a run's results, and what a graph, a partition or a run is."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from weft.cli.options import (
    At,
    Data,
    DstColumn,
    EdgeFeatures,
    Header,
    IdColumn,
    LabelColumn,
    Out,
    Overwrite,
    RelationColumn,
    RunArgument,
    SrcColumn,
    TimeColumn,
    Trust,
    Undirected,
    VertexTimeColumn,
    WeightColumn,
    What,
)
from weft.errors import UserError

if TYPE_CHECKING:
    from weft.graph import Graph
    from weft.results import Run

console = Console()


def evaluate(run: RunArgument, trust: Trust = False) -> None:
    """Measure a run's best weights, exactly, over the whole graph."""
    from weft.cli.show import metric_text, print_rows
    from weft.results import Run

    values = Run(run).evaluate(trust)
    rows = [(name.replace("_", " "), metric_text(name.partition("_")[2], value)) for name, value in values.items()]
    print_rows(str(run), rows)


def export(
    run: RunArgument,
    out: Out,
    what: What = "outputs",
    pairs: Annotated[
        Path | None, typer.Option(help="Links: pairs of vertices, as an edge list, of which scores are written.")
    ] = None,
    top: Annotated[
        int | None, typer.Option(min=1, help="Links: so many best candidates for an edge with each vertex.")
    ] = None,
    top_of: Annotated[
        Path | None, typer.Option("--for", help="With --top: ids of the vertices; of all unless given.")
    ] = None,
    candidates: Annotated[
        str, typer.Option(help="With --top: destinations of edges from the vertices, or sources of edges to them.")
    ] = "destinations",
    relation: Annotated[
        str | None, typer.Option(help="Links: the relation of the pairs, or of the edges that candidates are for.")
    ] = None,
    with_known: Annotated[
        bool, typer.Option("--with-known", help="With --top: also vertices that the graph has such an edge with.")
    ] = False,
    at: At = None,
    trust: Trust = False,
    overwrite: Overwrite = False,
) -> None:
    """Write what the model says of every vertex, with its original id, target and split, as .parquet, .csv or .npy.

    A .npy file holds the rows alone, in the order of the graph's vertices. Of a run that learns links these are the
    vertices' embeddings, and there are scores of given pairs and the best candidates of given vertices besides; of one
    that learns labels of edges there is a row for each edge of its table, in its order.

    [dim]weft export my-run --what probabilities --out probabilities.parquet[/dim]

    [dim]weft export my-links --top 10 --for users.csv --relation buys --out suggestions.csv[/dim]
    """
    if pairs is None and top is None:
        for name, given in (("--for", top_of), ("--relation", relation), ("--with-known", with_known)):
            if given:
                raise UserError(f"{name} is for scores of links: give --top, or --pairs with a relation")
        from weft.export import write_outputs

        count = write_outputs(run, out, trust, overwrite, what, at)
    else:
        count = _export_links(run, out, pairs, top, top_of, candidates, relation, with_known, trust, overwrite, at)
    console.print(f"{count:,} rows written to {out}", highlight=False)


def _export_links(
    run: Path,
    out: Path,
    pairs: Path | None,
    top: int | None,
    top_of: Path | None,
    candidates: str,
    relation: str | None,
    with_known: bool,
    trust: bool,
    overwrite: bool,
    at: str | None,
) -> int:
    from weft.linkscores import write_candidates, write_pair_scores
    from weft.results import Run

    if pairs is not None and (top is not None or top_of is not None or with_known):
        raise UserError("--pairs names the pairs that are scored: leave --top, --for and --with-known out")
    if pairs is not None:
        return write_pair_scores(Run(run), pairs, out, relation, trust, overwrite, at)
    assert top is not None
    return write_candidates(Run(run), out, top, top_of, candidates, relation, with_known, trust, overwrite, at)


def predict(
    run: RunArgument,
    data: Data = None,
    attach: Annotated[
        Path | None,
        typer.Option(
            help="Edges of new vertices: with each other, and with those of the run's graph. Of a graph with types, "
            "what describes their tables (new.yaml)."
        ),
    ] = None,
    features: Annotated[Path | None, typer.Option(help="The new vertices: ids and features (with --attach).")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; none unless given.")] = None,
    what: What = "outputs",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes on this machine; as the run had unless given.")
    ] = None,
    src_column: SrcColumn = None,
    dst_column: DstColumn = None,
    weight_column: WeightColumn = None,
    relation_column: RelationColumn = None,
    time_column: TimeColumn = None,
    vertex_time_column: VertexTimeColumn = None,
    edge_features: EdgeFeatures = None,
    id_column: IdColumn = None,
    label_column: LabelColumn = None,
    header: Header = None,
    undirected: Undirected = False,
    trust: Trust = False,
    overwrite: Overwrite = False,
) -> None:
    """Put a run's model on another graph, or on new vertices of its own graph, exact over the whole graph.

    The graph must have the features, relations and classes that the model was trained on. With --attach the new
    vertices come after those of --data, or of the run's own graph, and are the ones that are written. Where vertices
    are of several types, a file such as graph.yaml describes the new tables (docs/types.md).

    [dim]weft predict my-run --data other-graph --out predictions.parquet[/dim]
    [dim]weft predict my-run --attach new-edges.csv --features new-nodes.csv --undirected -o new.csv[/dim]
    [dim]weft predict my-run --attach new.yaml -o new.csv[/dim]
    """
    from weft.cli.show import output_rows, print_rows
    from weft.export import check_format, write_made
    from weft.outputs import Outputs
    from weft.results import Run, rows_of_new

    opened = Run(run)
    opened.check_what(what, elsewhere=True)
    if out is not None:
        check_format(out)
    columns = {
        "src_column": src_column, "dst_column": dst_column, "weight_column": weight_column,
        "relation_column": relation_column, "time_column": time_column,
        "vertex_time_column": vertex_time_column, "edge_features": edge_features.split(",") if edge_features else (),
        "id_column": id_column, "label_columns": label_column or (), "header": header, "undirected": undirected,
    }  # fmt: skip
    graph, before = _graph_to_predict(opened, data, attach, features, columns)

    def make() -> Outputs:
        rows = opened.predict(graph, workers, trust, "embeddings" if what == "embeddings" else "outputs")
        return rows if before is None else rows_of_new(rows, before, graph)

    found = make() if out is None else write_made(make, out, what, overwrite)
    print_rows(
        f"{run} on {data if attach is None else 'new vertices'}",
        output_rows(len(found.ids), found.class_counts, found.accuracy),
    )
    if out is not None:
        console.print(f"{len(found.ids):,} vertices written to {out}", highlight=False)


def _graph_to_predict(
    run: "Run", data: str | None, edges: Path | None, features: Path | None, columns: dict[str, Any]
) -> tuple[Any, "Graph | None"]:
    """The graph that the model is put on; and the graph to which new vertices came, where these are asked for."""
    from weft.graph import attach, open_graph
    from weft.graph.typedtables import DESCRIPTIONS

    described = edges is not None and edges.suffix in DESCRIPTIONS
    if edges is None or (features is None and not described):
        if edges is not None or features is not None:
            raise UserError("new vertices have edges and features: give both --attach EDGES and --features FILE")
        if data is None:
            raise UserError(
                "there is nothing to predict: give --data GRAPH, or --attach EDGES with --features FILE (weft export "
                "writes what the model says of the run's own vertices)"
            )
        return data, None
    before = run.graph if data is None else open_graph(data)
    return attach(before, edges, features, **columns), before


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, laid side by side.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="HTML file; RUN/report.html unless given.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Make one self-contained HTML page of one run or several: curves, bytes, memory, timeline."""
    from weft.report.page import write_report

    target = out or runs[0] / "report.html"
    if out is not None and os.path.lexists(out) and not overwrite:
        raise UserError(f"{out} exists already: choose another --out, or pass --overwrite")
    write_report(runs, target)
    console.print(f"report  {target}", highlight=False, soft_wrap=True)


def watch(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, laid side by side.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: the system chooses one.")] = 0,
) -> None:
    """Serve the report of runs while they train, to browsers of this machine; the page updates itself. Ctrl-C ends it.

    [dim]weft watch my-run[/dim]
    """
    from weft.report.watch import LivePage, Server

    with Server(LivePage(runs), port) as server:
        console.print(f"watching {', '.join(map(str, runs))} at {server.address}", highlight=False, soft_wrap=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def inspect(
    path: Annotated[str, typer.Argument(help="Graph folder, data set name, partition folder or run folder.")],
) -> None:
    """Show what a graph, a partition or a run is; of features from a table, what each column holds and became."""
    from weft.cli.show import bits_rows, graph_rows, partition_rows, print_preparations, print_rows, run_rows
    from weft.graph import describe, open_graph
    from weft.partitioning import read_partition
    from weft.prepare import folder_kind
    from weft.results import Run
    from weft.training.runfolder import RunFolder

    if RunFolder(path).exists():
        run = Run(Path(path))
        print_rows(path, run_rows(run.summary))
        bits = bits_rows(run.metrics)
        if bits:
            print_rows("how rows travelled", bits)
    elif folder_kind(path) == "partition":
        info = read_partition(path)
        print_rows(f"partition of {info.graph_name}", partition_rows(info))
        print_preparations(info.preparation, info.types)
    else:
        graph = open_graph(path)
        print_rows(f"graph {graph.name}", graph_rows(describe(graph)))
        print_preparations(graph.preparation, graph.types)
