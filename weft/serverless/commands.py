"""The commands `weft worker` and `weft lambda`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

console = Console()


def worker(
    address: Annotated[str, typer.Argument(help="tcp://HOST:PORT of a graph server: its executor.bind.")],
    count: Annotated[int, typer.Option(min=1, help="Workers to start here.")] = 1,
    idle: Annotated[
        float | None, typer.Option(min=0.1, help="Leave after so many seconds without a task (default: never).")
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to retry connecting to the run.")] = 600.0,
    trust: Annotated[
        list[str] | None,
        typer.Option(help="package.module of your own whose functions may be called; can be repeated."),
    ] = None,
) -> None:
    """Run tensor tasks for a run with executor.name=pool, from any machine that can connect to it.

    The run and its workers share a key of 64 hexadecimal digits, in the variable WEFT_KEY of both:

        export WEFT_KEY=$(openssl rand -hex 32)
        weft train ... --strategy dorylus --set executor.bind=tcp://10.0.0.1:7000
        weft worker tcp://10.0.0.1:7000 --count 4        # elsewhere
    """
    from weft.serverless.pool import run_workers

    raise typer.Exit(run_workers(address, count, idle, wait, tuple(trust or ())))


functions = typer.Typer(
    help="Tensor tasks in cloud functions: deploy the function, or run it here.", no_args_is_help=True
)
FunctionName = Annotated[str, typer.Option("--function", help="Name of the function.")]


@functions.command("package")
def lambda_package(
    out: Annotated[Path, typer.Option("--out", "-o", help="Archive to write.")] = Path("weft-function.zip"),
    function: FunctionName = "weft",
    architecture: Annotated[str, typer.Option(help="x86_64, or arm64, which costs a fifth less.")] = "x86_64",
) -> None:
    """Write the deployment archive; print the commands that create the function and the policy of graph servers."""
    from weft.serverless.deploy import MAX_UPLOAD_BYTES, PYTHON, build_archive, commands, invoke_policy

    with console.status("fetching numpy"):
        size = build_archive(out, architecture)
    console.print(f"wrote {out}: {size / 1e6:.1f} MB, Python {PYTHON}, {architecture}", highlight=False)
    if size > MAX_UPLOAD_BYTES:
        console.print("more than 50 MB: upload it through a bucket")
    console.print("\nCreate the function, once (ACCOUNT is your account's number):\n")
    for command in commands(out, function, architecture):
        console.print(command, soft_wrap=True, highlight=False, markup=False)
    console.print("\nAllow the graph servers to call it, and nothing else:\n")
    console.print(invoke_policy(function), highlight=False, markup=False)
    console.print("\nThen:\n")
    then = f"weft train ... --strategy dorylus --set executor.name=lambda --set executor.function={function}"
    console.print(then, soft_wrap=True, highlight=False, markup=False)


@functions.command("serve")
def lambda_serve(
    function: FunctionName = "weft",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 9001,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    concurrency: Annotated[
        int, typer.Option(min=1, help="Functions at once; further invocations are throttled, as in a cloud.")
    ] = 8,
) -> None:
    """Run functions on this machine, behind the interface of the cloud, without an account."""
    from weft.serverless.deploy import HANDLER
    from weft.serverless.endpoint import serve

    def on_listening(address: str) -> None:
        console.print(f"function '{function}' at {address}; end with Ctrl-C", highlight=False)
        console.print(f"use it with --set executor.name=lambda --set executor.endpoint={address}", highlight=False)

    serve({function: HANDLER}, host, port, concurrency, on_listening)
