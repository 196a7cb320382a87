"""The source text of functions and classes that a script or a notebook defines, with all that they use.

Workers are processes of their own and cannot import the script or notebook that started them. They are given the text
of what they need, in an order in which it can be run: definitions of the script, imports, and plain values. What has no
text is refused with a sentence. Nothing is pickled.
"""

import __future__

import ast
import dis
import inspect
import linecache
import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from weft.errors import UserError

MAIN = "__main__"
PLACES = (
    "torch",
    "torch.nn.functional",
    "numpy",
    "math",
    "builtins",
)  # of functions that do not say where they are from
ADVICE = "put it into a module of its own and import it, or train with one worker"


class Source:
    """The text of definitions, each after those that it uses."""

    def __init__(self) -> None:
        self._parts: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        self._future = False

    @property
    def text(self) -> str:
        future = ["from __future__ import annotations"] if self._future else []
        return "\n\n".join([*future, *self._parts.values()]) + "\n"

    def add(self, name: str, value: Any) -> None:
        """Makes the text give this value this name."""
        if name in self._values:
            assert self._values[name] is value, f"two values are called {name}"
            return
        self._values[name] = value
        text = self._definition(name, value) if _is_own(value) else _as_import(name, value) or _as_literal(name, value)
        if text is None:
            raise UserError(
                f"the model uses '{name}', a {type(value).__name__} of this script or notebook, which cannot be handed "
                f"to other processes: {ADVICE}"
            )
        self._parts[name] = text

    def _definition(self, name: str, value: Any) -> str:
        text, code = definition_of(value)
        namespace = vars(sys.modules[MAIN])
        for used in sorted(_globals_of(code)):
            if used in namespace and used != value.__name__ and not used.startswith("__"):
                self.add(used, namespace[used])
        flags = [one.co_flags for one in _codes(code)]
        live = next((function.__code__.co_flags for function in _functions_of(value)), 0)
        self._future |= any(flag & __future__.annotations.compiler_flag for flag in (*flags, live))
        return text if name == value.__name__ else f"{text}\n\n{name} = {value.__name__}"


def definition_of(value: Any) -> tuple[str, CodeType]:
    """The text of a function or class of the script, and what it compiles to; refused where that is not what runs."""
    name, live = value.__name__, [function.__code__ for function in _functions_of(value)]
    if value.__qualname__ != name or name == "<lambda>":
        where = "is a lambda" if name == "<lambda>" else "is defined inside of another definition"
        raise UserError(
            f"the model uses {value.__qualname__}, which {where}: give it a name of its own at the top level"
        )
    for text in _texts(live):
        node = _find(ast.parse(text), name, {code.co_firstlineno for code in live})
        if node is None:
            continue
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        own = textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno]))
        code = compile(own, f"<{name}>", "exec", dont_inherit=True)
        whole = _codes(compile(text, f"<{name}>", "exec", dont_inherit=True))  # imports beside it shape its code, too
        there = {(one.co_qualname, one.co_firstlineno): one.co_code for one in whole}
        if any(there.get((one.co_qualname, one.co_firstlineno)) != one.co_code for one in live):
            raise UserError(f"the source of {name} is no longer what was run: run the script or the cell again")
        return own, code
    raise UserError(f"the source of {name} cannot be found (was it typed at a prompt?): {ADVICE}")


def _texts(live: list[CodeType]) -> Iterator[str]:
    """The files or cells in which a definition may stand: its functions' own, the script, cells, the newest first."""
    script = getattr(sys.modules[MAIN], "__file__", None)
    cells = [] if live else [name for name in reversed(linecache.cache) if not os.path.exists(name)]
    for file in dict.fromkeys([*(code.co_filename for code in live), *([script] if script else []), *cells]):
        lines = linecache.getlines(file)
        with suppress(SyntaxError):  # some that Python keeps are no Python
            ast.parse("".join(lines))
            yield "".join(lines)


def _find(tree: ast.Module, name: str, lines: set[int]) -> ast.FunctionDef | ast.ClassDef | None:
    """The definition of this name in which these lines lie; of a class without functions, the last of its name."""
    found = None
    for node in _top_level(tree.body):
        if node.name == name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if all(first <= line <= (node.end_lineno or first) for line in lines):
                found = node
    return found


def _top_level(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node
        elif isinstance(node, ast.If | ast.With | ast.Try):
            yield from _top_level(node.body)


def _is_own(value: Any) -> bool:
    """Whether it is a function or class that the script or notebook defines."""
    return isinstance(value, FunctionType | type) and value.__module__ == MAIN


def _functions_of(value: Any) -> list[FunctionType]:
    """The function itself, or those of the class that were defined with it."""
    if isinstance(value, FunctionType):
        return [inspect.unwrap(value)]
    unwrapped = (getattr(one, "__func__", getattr(one, "fget", one)) for one in vars(value).values())
    functions = [inspect.unwrap(one) for one in unwrapped if isinstance(one, FunctionType)]
    return [one for one in functions if one.__qualname__.startswith(f"{value.__qualname__}.") and _has_text(one)]


def _has_text(function: FunctionType) -> bool:
    """Whether it stands in a file or cell; functions that a decorator makes (of data classes) do not."""
    return bool(linecache.getlines(function.__code__.co_filename))


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _globals_of(code: CodeType) -> set[str]:
    """Names that the code, and what is defined in it, takes from the module."""
    found: set[str] = set()
    for one in (code, *_codes(code)):
        stored = {step.argval for step in dis.get_instructions(one) if step.opname == "STORE_NAME"}
        loads = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
        found |= {step.argval for step in dis.get_instructions(one) if step.opname in loads} - stored
    return found


def _as_import(name: str, value: Any) -> str | None:
    """The import by which another process gets the same value; None: there is none."""
    if isinstance(value, ModuleType):
        return None if value.__name__ == MAIN else f"import {value.__name__} as {name}"
    reference = reference_of(value, name)
    return None if reference is None else "from {} import {} as {}".format(*reference, name)


def reference_of(value: Any, name: str | None = None) -> tuple[str, str] | None:
    """Module and name by which a value can be imported, if it can be."""
    own_name = getattr(value, "__name__", None) or name
    if isinstance(value, str | int | float | tuple | list | dict) or not isinstance(own_name, str):
        return None
    home = getattr(value, "__module__", None)
    for module in (home, *PLACES):
        if module != MAIN and module in sys.modules and getattr(sys.modules[module], own_name, None) is value:
            return str(module), own_name
    return None


def _as_literal(name: str, value: Any) -> str | None:
    """A plain value as text; None: it is none."""
    if isinstance(value, torch.dtype):
        return f"{name} = __import__('torch').{str(value).removeprefix('torch.')}"
    if isinstance(value, torch.device):
        return f"{name} = __import__('torch').device({str(value)!r})"
    try:
        plain = ast.literal_eval(repr(value))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return f"{name} = {value!r}" if type(plain) is type(value) and plain == value else None
