"""The pages of the reference, made of what the program says of itself: its names, its settings, its commands."""

import re
from typing import Any

import typer
from pydantic import BaseModel

import weft
from weft.cli.app import app
from weft.cli.verb import Verb, complete_help
from weft.config import RunConfig, Setting, list_settings

GROUPS = {  # every name of weft.__all__ has its place in one of them
    "Graphs": "Graph load ingest partition attach",
    "Graphs of others": "from_edges from_pyg from_dgl from_networkx from_scipy from_pandas to_pyg to_dgl",
    "Training": "train Run StopTraining",
    "What failed": "UserError RunFailed WorkerLost",
    "Layers of your own": "GraphView EdgeRows",
    "Training loops of your own": "init_workers open_part DistributedGraph Loader all_reduce_gradients",
}


def python_page() -> str:
    """Every name of the package, by mkdocstrings, from the module that defines it."""
    named = [name for names in GROUPS.values() for name in names.split()]
    if sorted(named) != sorted(weft.__all__):
        other = ", ".join(sorted(set(named) ^ set(weft.__all__)))
        raise ValueError(f"the reference and weft.__all__ differ in {other}: put each name of weft into one of GROUPS")
    about = "\n\n".join((weft.__doc__ or "").split("\n\n"))
    parts = ["# Python", about, "[python.md](../python.md) shows them in use."]
    for group, names in GROUPS.items():
        parts.append(f"## {group}")
        for name in names.split():
            defined = getattr(weft, name)
            path = f"{defined.__module__}.{defined.__qualname__}"
            parts.append(f"::: {path}\n    options:\n      heading: weft.{name}\n      toc_label: {name}")
            parts.append(f'<span id="weft.{name}"></span>')
    return "\n\n".join(parts)


def settings_page() -> str:
    """`weft.config.list_settings()`, section by section."""
    sections: dict[str, list[Setting]] = {}
    for setting in list_settings():
        sections.setdefault(setting.key.rpartition(".")[0], []).append(setting)
    parts = [
        "# Settings",
        "A config file has them as sections and keys, `--set section.key=value` sets one, and in Python a section "
        'is an argument: `weft.train(..., train={"epochs": 50})`. `weft settings` prints this list.',
    ]
    for section, settings in sections.items():
        parts.append(f"## {section or 'The run'}")
        parts += [_about(section)] * bool(_about(section))
        rows = "".join(
            f"| `{one.key}` {{#{one.key}}} | {_cell(one.about)} | {_cell(one.values)} | {_code(one.default)} |\n"
            for one in settings
        )
        parts.append(f"| setting | what it is | values | default |\n| --- | --- | --- | --- |\n{rows}")
    return "\n\n".join(parts)


def _about(section: str) -> str:
    """What the class of a section says of it."""
    if not section:
        return ""
    kind: Any = RunConfig
    for name in section.split("."):
        kind = kind.model_fields[name].annotation
    assert issubclass(kind, BaseModel)
    return (kind.__doc__ or "").split("\n\n")[0]


def commands_page() -> str:
    """The help of every command."""
    parts = ["# Commands", "`weft COMMAND --help` prints the same."]
    group: Any = typer.main.get_command(app)
    context = group.make_context("weft", [], resilient_parsing=True)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            inner = command.make_context(name, [], parent=context, resilient_parsing=True)
            for verb in command.list_commands(inner):
                parts.append(_command(f"weft {name} {verb}", command.get_command(inner, verb), inner))
        else:
            parts.append(_command(f"weft {name}", command, context))
    return "\n\n".join(parts)


def _command(name: str, command: Any, parent: Any) -> str:
    if isinstance(command, Verb):
        complete_help(command)
    context = command.make_context(name.split()[-1], [], parent=parent, resilient_parsing=True)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    rows = "".join(_option(option) for option in command.params if option.name != "help" and not option.hidden)
    table = f"| option | what it is | default |\n| --- | --- | --- |\n{rows}" if rows else ""
    return "\n\n".join(
        part for part in (f"## {name}", f"```text\n{usage}\n```", _text(command.help or ""), table) if part
    )


def _text(text: str) -> str:
    """Help as the terminal shows it: what is dimmed there are commands."""
    paragraphs = []
    for paragraph in text.split("\f")[0].strip().split("\n\n"):
        dim = re.findall(r"\[dim\](.*?)\[/dim\]", paragraph, re.DOTALL)
        lines = "\n".join(" ".join(one.replace("\\[", "[").split()) for one in dim)
        paragraphs.append(f"```sh\n{lines}\n```" if dim else paragraph)
    return "\n\n".join(paragraphs)


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    if option.param_type_name == "argument":
        names = f"`{(option.metavar or option.name).upper()}`"
    default = option.default() if callable(option.default) else option.default
    shown = "required" if option.required else "" if default in (None, False, [], ()) else _code(str(default))
    return f"| {names} | {_cell(getattr(option, 'help', None) or '')} | {shown} |\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")
