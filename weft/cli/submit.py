"""The verbs that hand a run to a scheduler of other machines: `weft submit slurm` and `weft submit kubernetes`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft import __version__
from weft.cli.options import Data, Settings
from weft.cli.verb import Verb
from weft.errors import UserError

if TYPE_CHECKING:
    from weft.submit import ClusterJob

submissions = typer.Typer(
    help="Hand a run to a scheduler of other machines: Slurm or Kubernetes.", no_args_is_help=True
)

RESOURCES = "What each node gives"
SubmittedConfig = Annotated[Path, typer.Argument(help="YAML file of settings; options come on top of it.")]
RunFolderOption = Annotated[str | None, typer.Option("--run", help="Run folder, on a path that all nodes share.")]
Nodes = Annotated[int, typer.Option(min=1, help="Machines.", rich_help_panel=RESOURCES)]
WorkersEach = Annotated[
    int | None,
    typer.Option(
        "--workers-per-node", min=1, help="Processes on each; the config's workers, shared out, unless given.",
        rich_help_panel=RESOURCES,
    ),
]  # fmt: skip
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Of each worker; the config's threads, or 4, unless given.", rich_help_panel=RESOURCES),
]
Memory = Annotated[
    str | None,
    typer.Option(help="Of each node, as 64G; estimated from the partition unless given.", rich_help_panel=RESOURCES),
]
JobName = Annotated[str | None, typer.Option("--name", help="Of the job; weft-RUN unless given.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be submitted, and submit nothing.")]


@submissions.command("slurm", cls=Verb)
def submit_slurm(
    config: SubmittedConfig,
    data: Data = None,
    run: RunFolderOption = None,
    nodes: Nodes = 1,
    workers_per_node: WorkersEach = None,
    threads: Threads = None,
    memory: Memory = None,
    time: Annotated[str, typer.Option(help="Limit of each allocation; then the run goes on in another.")] = "04:00:00",
    name: JobName = None,
    sbatch: Annotated[
        list[str] | None, typer.Option(help="Any option of sbatch without its dashes; may be repeated.")
    ] = None,
    setup: Annotated[
        list[str] | None, typer.Option(help="Command of the shell before the start; may be repeated.")
    ] = None,
    dry_run: DryRun = False,
    settings: Settings = None,
) -> None:
    """Queue a run under Slurm: one torchrun on each node.

    It goes on by itself: before the time limit the workers write a checkpoint, and the job queues itself again.

    [dim]weft submit slurm config.yaml --nodes 2 --time 12:00:00[/dim]
    [dim]weft submit slurm config.yaml --nodes 2 --sbatch partition=long --setup '. /shared/venv/bin/activate'[/dim]
    [dim]weft submit slurm config.yaml --nodes 2 --memory 64G --dry-run > job.sh[/dim]
    """
    from weft.submit import Limits, script, submit

    job = _plan(config, data, run, settings, name, nodes, workers_per_node, threads, memory)
    text = script(job, Limits(time, sbatch or (), setup or ()))
    if dry_run:
        print(text, end="")
        return
    parent = Path(job.run).parent
    if not parent.is_dir():
        raise UserError(f"{parent} is not here, so Slurm could write nothing to it: make it, or give another --run")
    print(submit(text))


@submissions.command("kubernetes", cls=Verb)
def submit_kubernetes(
    config: SubmittedConfig,
    data: Data = None,
    run: RunFolderOption = None,
    nodes: Nodes = 1,
    workers_per_node: WorkersEach = None,
    threads: Threads = None,
    memory: Memory = None,
    name: JobName = None,
    image: Annotated[
        str, typer.Option(help="Of docker/Dockerfile, where your cluster pulls it from.")
    ] = f"weft:{__version__}",
    claim: Annotated[str, typer.Option(help="PersistentVolumeClaim that all pods may write.")] = "weft-data",
    mount: Annotated[str, typer.Option(help="Where pods see it; data and run folder lie in it.")] = "/shared",
    interface: Annotated[str, typer.Option(help="Network interface of pods.")] = "eth0",
    retries: Annotated[int, typer.Option(min=0, help="How often pods start again after one failed.")] = 3,
    time: Annotated[str | None, typer.Option(help="Limit after which the Job is ended; none unless given.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Where to make it; kubectl's own unless given.")] = None,
    dry_run: DryRun = False,
    settings: Settings = None,
) -> None:
    """Start a run under Kubernetes: a headless Service, and an Indexed Job with one torchrun in each pod.

    Pods that fail or are evicted start again and go on from the newest checkpoint. After the Job has ended the same
    command goes on with the run: it makes another Job.

    [dim]weft submit kubernetes config.yaml --nodes 2 --image registry.example.com/weft:1[/dim]
    [dim]weft submit kubernetes config.yaml --nodes 2 --memory 64G --claim data --mount /data --dry-run > job.yaml[/dim]
    """
    from weft.submit import Pods, create, manifests
    from weft.submit.kubernetes import ROLE_LABEL, SHARED, STARTED, as_text

    job = _plan(config, data, run, settings, name, nodes, workers_per_node, threads, memory)
    found = manifests(job, Pods(image, claim, mount, interface, retries, time))
    if not dry_run:
        print(create(found, namespace))
        return
    where = "" if namespace is None else f" --namespace {shlex.quote(namespace)}"
    about = (
        "Once:      "
        f"kubectl apply{where} -f FILE -l {ROLE_LABEL}={SHARED}\n"
        "Each time: "
        f"kubectl create{where} -f FILE -l {ROLE_LABEL}={STARTED}   (a Job of another name, which goes on with the run)"
    )
    print(as_text(found, about), end="")


def _plan(
    config: Path,
    data: str | None,
    run: str | None,
    settings: list[str] | None,
    name: str | None,
    nodes: int,
    workers_per_node: int | None,
    threads: int | None,
    memory: str | None,
) -> "ClusterJob":
    from weft.config import merge, parse_set, read_yaml
    from weft.submit import Hosts, plan_job

    given = {key: value for key, value in (("data", data), ("run", run)) if value is not None}
    chosen = merge(merge(read_yaml(config), given), parse_set(settings or []))
    return plan_job(chosen, Hosts(nodes, workers_per_node, threads, memory), name)
