"""The verbs that train, and the one that compares plans before training."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from weft.cli.options import ConfigFile, Data, Model, Settings, Trust, Workers
from weft.errors import UserError

if TYPE_CHECKING:
    from weft.config import RunConfig

console = Console()


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
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with --run from its newest checkpoint, or begin if it has none.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Do --run again from the start.")] = False,
    trust: Trust = False,
    restarts: Annotated[
        int, typer.Option(min=0, help="Go on so many times by itself after a worker was lost or killed.")
    ] = 0,
    track: Annotated[
        str | None, typer.Option(help="Trackers that are told of the run: tensorboard, mlflow, wandb, with commas.")
    ] = None,
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
    from weft.training.runfolder import RunFolder

    before: dict[str, Any] = {}
    if resume and run is not None and config is None and (data is None or RunFolder(run).exists()):
        before = RunFolder.open(run).config()
    chosen = _choose(
        config, settings, before, trust, data=data, strategy=strategy, workers=workers, seed=seed, run=run and str(run),
        model=model and {"name": model}, train=epochs and {"epochs": epochs},
        track=track and {"to": [name.strip() for name in track.split(",")]},
    )  # fmt: skip
    if before and model is None and run is not None:
        _refuse_foreign_code(run, before, trust)
    if resume and "run" not in chosen:
        raise UserError("--resume needs the run to go on with: give --run DIR")
    if "WORLD_SIZE" in os.environ and workers is None:
        chosen["workers"] = int(os.environ["WORLD_SIZE"])
    made = make_config(chosen)
    _prepare_workers(made)
    start(made, resume, overwrite, restarts=restarts)


def _prepare_workers(config: "RunConfig") -> None:
    """Keeps a process from which a run's workers are forked: now, since a fork is safe only before anything has run."""
    from weft.launch.processes import hold_starter

    if config.workers > 1 and "WORLD_SIZE" not in os.environ:
        hold_starter()


def _choose(
    config: Path | None, settings: list[str] | None, before: dict[str, Any], trust: bool, **options: object
) -> dict[str, Any]:
    """What a run is to be: the file's settings (or those of before), the options that were given, and --set."""
    from weft.config import merge, parse_set, read_yaml
    from weft.training.runfolder import RunFolder

    chosen = before if config is None else read_yaml(config)
    if (
        config is not None
        and RunFolder(config.parent).config_file == config
        and (config.parent / "checkpoints").is_dir()
    ):
        _refuse_foreign_code(config.parent, chosen, trust)  # the settings of a run, which somebody else may have made
    given = {key: value for key, value in options.items() if value is not None}
    return merge(merge(chosen, given), parse_set(settings or []))


def _refuse_foreign_code(run: Path, settings: dict[str, Any], trust: bool) -> None:
    """What a run folder names to be run; under torchrun worker 0 decides, without which no other gets so far."""
    from weft.trust import check

    model = settings.get("model")
    if isinstance(model, dict) and os.environ.get("RANK", "0") == "0":
        check(run, str(model.get("name", "")), trust)


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
    trust: Trust = False,
    settings: Settings = None,
) -> None:
    """Compare plans before training: rows, bytes, edges and modelled time of each, for the same minibatches.

    Some minibatches are drawn as every plan draws them; nothing is trained. The last line is the command that trains by
    the best plan, as `weft train --strategy auto` does.

    [dim]weft plan --data my-parts --model sage --workers 4 --bandwidth 1000[/dim]
    """
    from weft.cli.plans import print_places, print_plans, train_command
    from weft.config import make_config
    from weft.run import compare_plans

    chosen = _choose(
        config, settings, {}, trust, strategy="auto", data=data, workers=workers, model=model and {"name": model}
    )
    run = make_config(chosen)
    _prepare_workers(run)
    found = compare_plans(run, bandwidth, None if latency is None else latency / 1e3)
    found["command"] = train_command(found, config, settings or [], trust, data=data, model=model, workers=workers)
    print_plans(found)
    if functions:
        from weft.estimate.choice import compare_places

        found["places"] = compare_places(run, found)
        print_places(found["places"])
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=1))


def demo(
    run: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo"),
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
) -> None:
    """Train on the embedded synthetic graph with two workers and write a report, in well under three minutes."""
    from weft.config import make_config
    from weft.report.page import write_report
    from weft.run import start

    settings = {
        "data": "synthetic:demo",
        "run": str(run),
        "workers": workers,
        "model": {"name": "sage", "hidden": 64, "layers": 2},
        "train": {"epochs": 60},
    }
    config = make_config(settings)
    _prepare_workers(config)
    start(config, overwrite=True)
    write_report([run], run / "report.html")
    console.print(f"report  {run / 'report.html'}", highlight=False, soft_wrap=True)
