"""The verbs about weft itself: its settings, and what this machine can do."""

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text


def settings() -> None:
    """List every setting that a config file or --set takes, with its allowed values and its default."""
    from weft.config import list_settings

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for setting in list_settings():  # as Text: Rich would take [a | b] for markup
        allowed = Text(f"{setting.values}; default {setting.default}", style="cyan")
        table.add_row(Text(setting.key), Text.assemble(setting.about, "\n", allowed))
    Console().print(table)


def doctor() -> None:
    """Show what this machine can do and what is missing."""
    from weft.cli.doctor import examine
    from weft.cli.show import print_rows

    findings = examine()
    colours = {"ok": "green", "note": "yellow", "missing": "red"}
    print_rows("weft doctor", [(f.name, Text.assemble((f"{f.state:8}", colours[f.state]), f.text)) for f in findings])
    if any(finding.state == "missing" for finding in findings):
        raise typer.Exit(1)
