"""The class of all commands. Names that their help lists are looked up when it is printed, since that needs torch."""

import gc
import sys
from collections.abc import Callable
from typing import Any

from typer.core import TyperCommand


def _layers() -> str:
    from weft.layers.registry import layer_names

    return ", ".join(layer_names())


def _partitioners(of_graphs: bool) -> str:
    from weft.partitioning import describe_partitioners

    return describe_partitioners(of_graphs)


# What stands in the help texts of options for names that are looked up.
LAYERS, METHODS, FILE_METHODS = "{layers}", "{methods}", "{methods of edge files}"
_LOOK_UP: dict[str, Callable[[], str]] = {
    LAYERS: _layers,
    METHODS: lambda: _partitioners(True),
    FILE_METHODS: lambda: _partitioners(False),
}


class Verb(TyperCommand):
    def invoke(self, ctx: Any) -> Any:
        """Runs the command. What all of them import comes first, without looks for garbage among what will stay."""
        if "torch" not in sys.modules:
            gc.disable()
            try:
                import weft.config  # noqa: F401
                from weft.launch.processes import note_imports
            finally:
                gc.freeze()
                gc.enable()
            note_imports()
        return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        complete_help(self)
        super().format_help(ctx, formatter)


def complete_help(verb: Verb) -> None:
    """Puts the names that are looked up into the help texts of a command's options."""
    for option in verb.params:
        text = getattr(option, "help", None) or ""
        for place, look_up in _LOOK_UP.items():
            if place in text:
                text = text.replace(place, look_up())
                option.help = text  # type: ignore[attr-defined]
