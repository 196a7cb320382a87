"""The command line: one verb per thing that a person wants to do."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft.errors import UserError, WorkerLost, optional
from weft.serverless.commands import functions, worker

if TYPE_CHECKING:
    from weft.partition import PartitionInfo

app = typer.Typer(
    name="weft",
    help="Train graph neural networks on graphs that one machine cannot hold.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
console = Console()

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder or file to write.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
ConfigFile = Annotated[Path | None, typer.Argument(help="YAML file of settings; options come on top of it.")]
Data = Annotated[str | None, typer.Option(help="Data set name, graph folder, partition folder, .npz file.")]
Model = Annotated[
    str | None, typer.Option(help="gcn, sage, gat, gatv2, transformer, gin, rgcn, or package.module:callable.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes on this machine.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting, section.key=value; see 'weft settings'.")
]


@app.command()
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


@app.command()
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


@app.command()
def train(
    config: ConfigFile = None,
    data: Data = None,
    model: Model = None,
    strategy: Annotated[
        str | None, typer.Option(help="Preset: full, single, sar, adaqp, minibatch, batchgnn, gsplit, dorylus or auto.")
    ] = None,
    workers: Workers = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the graph.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of weights, dropout and partition.")] = None,
    run: Annotated[Path | None, typer.Option(help="Run folder; runs/DATA-MODEL-N unless given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with --run from its newest checkpoint.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Do --run again from the start.")] = False,
    settings: Settings = None,
) -> None:
    """Train a model, over the full graph or on minibatches.

    [dim]weft train --data cora --model gcn --workers 2[/dim]
    [dim]weft train --data my-parts --model sage --strategy batchgnn --workers 4 --set sample.fanout=[10,10][/dim]
    [dim]weft train recipes/cora-gcn.yaml --seed 1 --set model.hidden=32[/dim]
    [dim]torchrun --nnodes 2 --nproc-per-node 2 ... -m -- weft train config.yaml --run /shared/run[/dim]
    """
    from weft.config import make_config
    from weft.run import start
    from weft.train.runfolder import RunFolder

    before = RunFolder.open(run).config() if resume and run is not None and config is None else {}
    chosen = _choose(
        config, settings, before, data=data, strategy=strategy, workers=workers, seed=seed, run=run and str(run),
        model=model and {"name": model}, train=epochs and {"epochs": epochs},
    )  # fmt: skip
    if resume and "run" not in chosen:
        raise UserError("--resume needs the run to go on with: give --run DIR")
    if "WORLD_SIZE" in os.environ and workers is None:
        chosen["workers"] = int(os.environ["WORLD_SIZE"])
    start(make_config(chosen), resume, overwrite)


def _choose(
    config: Path | None, settings: list[str] | None, before: dict[str, Any], **options: object
) -> dict[str, Any]:
    """What a run is to be: the file's settings (or those of before), the options that were given, and --set."""
    from weft.config import merge, parse_set, read_yaml

    chosen = before if config is None else read_yaml(config)
    given = {key: value for key, value in options.items() if value is not None}
    return merge(merge(chosen, given), parse_set(settings or []))


@app.command()
def plan(
    config: ConfigFile = None,
    data: Data = None,
    model: Model = None,
    workers: Workers = None,
    bandwidth: Annotated[
        float | None, typer.Option(min=0.001, help="Of every worker's link, Mb/s; measured here unless given.")
    ] = None,
    latency: Annotated[
        float | None, typer.Option(min=0.0, help="Milliseconds that a wait for others takes; measured unless given.")
    ] = None,
    functions: Annotated[
        bool, typer.Option("--functions", help="Compare CPU servers, CPU servers with functions, and GPU servers, too.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the table here, too.")] = None,
    settings: Settings = None,
) -> None:
    """Compare plans before training: rows, bytes, edges and modelled time of each, for the same minibatches.

    Some minibatches are drawn as every plan draws them; nothing is trained. `weft train --strategy auto` takes the
    best one.

    [dim]weft plan --data my-parts --model sage --workers 4 --bandwidth 1000[/dim]
    """
    from weft.config import make_config
    from weft.run import weigh
    from weft.show import print_plans

    chosen = _choose(config, settings, {}, strategy="auto", data=data, workers=workers, model=model and {"name": model})
    run = make_config(chosen)
    found = weigh(run, bandwidth, None if latency is None else latency / 1e3)
    print_plans(found)
    if functions:
        from weft.choosing import places
        from weft.show import print_places

        found["places"] = places(run, found)
        print_places(found["places"])
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1))


@app.command()
def evaluate(run: Annotated[Path, typer.Argument(help="Run folder.")]) -> None:
    """Measure a run's best weights, exactly, over the whole graph."""
    from weft.run import Run
    from weft.show import print_rows

    values = Run(run).evaluate()
    print_rows(str(run), [(name.replace("_", " "), f"{100 * value:.2f} %") for name, value in values.items()])


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    out: Out,
) -> None:
    """Write every vertex's prediction and outputs with its original id, as .parquet, .csv or .npy.

    A .npy file holds the outputs alone, in the order of the graph's vertices.
    """
    from weft.export import write_outputs

    count = write_outputs(run, out)
    console.print(f"{count:,} vertices written to {out}", highlight=False)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, laid side by side.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="HTML file; RUN/report.html unless given.")] = None,
) -> None:
    """Make one self-contained HTML page of one run or several: curves, bytes, memory, timeline."""
    from weft.train.report import report as write

    target = out or runs[0] / "report.html"
    write(runs, target)
    console.print(f"report  {target}", highlight=False, soft_wrap=True)


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(help="Graph folder, data set name, partition folder or run folder.")],
) -> None:
    """Show what a graph, a partition or a run is."""
    from weft.graph import describe, open_graph
    from weft.partition import read_partition
    from weft.prepare import folder_kind
    from weft.run import Run
    from weft.show import graph_rows, partition_rows, print_rows, run_rows, width_rows
    from weft.train.runfolder import RunFolder

    if RunFolder(path).exists():
        run = Run(Path(path))
        print_rows(path, run_rows(run.summary))
        widths = width_rows(run.metrics)
        if widths:
            print_rows("how rows travelled", widths)
    elif folder_kind(path) == "partition":
        info = read_partition(path)
        print_rows(f"partition of {info.graph_name}", partition_rows(info))
    else:
        graph = open_graph(path)
        print_rows(f"graph {graph.name}", graph_rows(describe(graph)))


@app.command()
def settings() -> None:
    """List every setting that a config file or --set takes."""
    from weft.config import known_keys

    table = Table(title="settings", show_lines=False)
    table.add_column("key", style="bold", no_wrap=True)
    table.add_column("meaning")
    for key, about in known_keys().items():
        table.add_row(key, about)
    console.print(table)


@app.command()
def doctor() -> None:
    """Show what this machine can do and what is missing."""
    from weft.doctor import examine
    from weft.show import print_rows

    findings = examine()
    colours = {"ok": "green", "note": "yellow", "missing": "red"}
    print_rows("weft doctor", [(f.name, Text.assemble((f"{f.state:8}", colours[f.state]), f.text)) for f in findings])
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)


@app.command()
def demo(
    run: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo"),
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
) -> None:
    """Train on the embedded synthetic graph with two workers and write a report, in well under three minutes."""
    from weft.config import make_config
    from weft.run import start
    from weft.train.report import report as write

    settings = {
        "data": "synthetic:demo",
        "run": str(run),
        "workers": workers,
        "model": {"name": "sage", "hidden": 64, "layers": 2},
        "train": {"epochs": 60},
    }
    start(make_config(settings), overwrite=True)
    write([run], run / "report.html")
    console.print(f"report  {run / 'report.html'}", highlight=False, soft_wrap=True)


app.command()(worker)
app.add_typer(functions, name="lambda")


def main() -> None:
    """Runs the command line; a user's mistake is one sentence and exit code 2."""
    from weft.comm import run_worker
    from weft.run import RunFailed

    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:  # torchrun's worker: must not wait for peers that are gone
        run_worker(app)
    try:
        with optional("this"):
            app()
    except UserError as error:
        _complain(str(error))
        sys.exit(2)
    except WorkerLost as error:
        _complain(str(error))
        sys.exit(1)
    except RunFailed as error:
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(130)


def _complain(message: str) -> None:
    Console(stderr=True).print(Text.assemble(("error ", "bold red"), message), soft_wrap=True)


if __name__ == "__main__":
    main()
