"""The command line: one verb per thing that a person wants to do."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft.data_verbs import Out, ingest, partition
from weft.errors import UserError, WorkerLost, optional
from weft.serverless.commands import functions, worker

app = typer.Typer(
    name="weft",
    help="Train graph neural networks on graphs that one machine cannot hold.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
console = Console()

ConfigFile = Annotated[Path | None, typer.Argument(help="YAML file of settings; options come on top of it.")]
Data = Annotated[str | None, typer.Option(help="Data set name, graph folder, partition folder, .npz file.")]
Model = Annotated[
    str | None, typer.Option(help="gcn, sage, gat, gatv2, transformer, gin, rgcn, or package.module:callable.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes on this machine.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting, section.key=value; see 'weft settings'.")
]


app.command()(ingest)
app.command()(partition)


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
