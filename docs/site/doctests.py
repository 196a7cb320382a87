"""Examples in docstrings begin with `>>>`, which Markdown takes for quotations: they become blocks of code."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\n(?!>>> )|\Z)", re.MULTILINE | re.DOTALL)


def with_code_blocks(text: str) -> str:
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```", text)


class Doctests(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_code_blocks(obj.docstring.value)
