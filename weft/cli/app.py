"""The command line: one verb per thing that a person wants to do."""

import difflib
import os
import signal
import sys
import traceback
from typing import Annotated, Any

import typer

from weft import __version__
from weft.cli.about import doctor, settings
from weft.cli.data import ingest, partition
from weft.cli.results import evaluate, export, inspect, predict, report, watch
from weft.cli.submit import submissions
from weft.cli.train import demo, plan, train
from weft.cli.verb import Verb
from weft.disk.space import sentence_for
from weft.errors import Terminated, UserError, WorkerLost, describe_error, optional, print_error
from weft.launch.ending import RunFailed, print_failure
from weft.serverless.commands import functions, worker

USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]  # of click, which typer brings or depends on

app = typer.Typer(
    name="weft",
    help="Train graph neural networks on graphs that one machine cannot hold.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"weft {__version__}")
        raise typer.Exit()


@app.callback()
def weft(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


VERBS = (
    *(ingest, partition, train, plan, evaluate, export, predict, report, watch),
    *(inspect, settings, doctor, demo, worker),
)
for verb in VERBS:
    app.command(cls=Verb)(verb)
app.add_typer(functions, name="lambda")
app.add_typer(submissions, name="submit")


def main() -> None:
    """Runs the command line. A failure ends in one line, `error: SENTENCE`; the exit code is 2 for a user's mistake."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:  # torchrun's worker: must not wait for peers that are gone
        from weft.comm import run_worker

        run_worker(_run_verb)
    _leave_on_signals()
    try:
        with optional("this"):
            _run_verb()
    except WorkerLost as error:
        print_error(error)
        sys.exit(1)
    except RunFailed as error:
        sys.exit(print_failure(error.ending).code)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        sentence = error if isinstance(error, UserError) else sentence_for(error)
        if sentence is None:
            traceback.print_exception(error)
        print_error(describe_error(error) if sentence is None else sentence)
        sys.exit(1 if sentence is None else 2)


def _run_verb() -> None:
    """Runs the verb that the arguments name. Mistakes in them are UserErrors, like all others."""
    try:
        code = app(prog_name="weft", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help has been printed
            sys.exit(2)
        raise UserError(_usage_sentence(error)) from None
    sys.exit(code)


def _usage_sentence(error: Any) -> str:
    """What is wrong with the arguments, and where to read how they are."""
    context = error.ctx
    if hasattr(error, "possibilities"):  # an option that does not exist
        known = [] if context is None else [name for option in context.command.params for name in option.opts]
        near = difflib.get_close_matches(error.option_name, known, n=1)
        message = f"no such option {error.option_name}" + (f": did you mean {near[0]}?" if near else "")
    else:
        message = error.format_message().rstrip(".").replace(". Did you mean", ": did you mean")
    verb = "weft" if context is None else context.command_path
    return f"{message[:1].lower()}{message[1:]} (see '{verb} --help')"


def _leave_on_signals() -> None:
    """SIGTERM and SIGHUP end the process as an exception does, so that nothing half-made stays and no child is left."""

    def leave(number: int, _: object) -> None:
        for later in ends:
            signal.signal(later, signal.SIG_IGN)
        raise Terminated(128 + number)

    ends = (signal.SIGTERM, signal.SIGHUP)
    for number in ends:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP, and is to be obeyed
            signal.signal(number, leave)


if __name__ == "__main__":
    main()
