"""Imports of the package point one way: a module imports from its own room and from those before it in ROOMS.

README ("Where things are") and docs/architecture.md show the same order to people.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

# The order of the rooms. A package stands for all modules in it that are not named themselves.
ROOMS = (
    "weft.errors",
    "weft.launch.path",  # these two come before torch is imported, and import nothing of weft
    "weft.launch.parent",
    "weft.plugins",
    "weft.disk",
    "weft.kernels",
    "weft.graph",
    "weft.partitioning",
    "weft.cli.show",  # tables for people, which workers print too
    "weft.comm",
    "weft.aggregate",
    "weft.sample",
    "weft.layers",
    "weft.training",
    "weft.report",
    "weft.serverless",
    "weft.strategy",
    "weft.config",
    "weft.trust",
    "weft.prepare",
    "weft.own_loop",
    "weft.loader",
    "weft.estimate",
    "weft.launch",
    "weft.predict",
    "weft.outputs",
    "weft.results",
    "weft.run",
    "weft.export",
    "weft.linkscores",
    "weft.out_of_core",
    "weft",
    "weft.submit",
    "weft.cli",
    "weft.__main__",
)

# Imports inside functions of what another room has, by importing module (or package) and imported room, and why.
LAZY = {
    ("weft.cli", "*"): "`weft --help` and mistakes in arguments answer at once: torch takes seconds to import",
    ("weft.launch.worker", "weft.serverless"): "needs the packages of an extra, which other runs do not",
    ("weft.estimate.choice", "weft.serverless"): "needs the packages of an extra, which other runs do not",
    ("weft.partitioning.quality", "weft.graph"): "reads tables of original ids only where parts are described",
    ("weft.launch.starter", "weft.comm"): "imports torch, and is to end with the launcher before",
}


class Import(NamedTuple):
    module: str
    line: int
    imported: str
    lazy: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.imported}"


def name_of(file: Path) -> str:
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


MODULES = {name_of(file): file for file in sorted((ROOT / "weft").rglob("*.py"))}


def room_of(module: str) -> str:
    """The room with the longest name that the module is, or is in; `weft` itself holds nothing but its __init__."""
    rooms = [room for room in ROOMS if module == room or (room != "weft" and module.startswith(f"{room}."))]
    assert rooms, f"{module} is in no room: give it a place in ROOMS"
    return max(rooms, key=len)


def imports_of(module: str) -> Iterator[Import]:
    """What a module imports of weft, but for what only type checkers read."""

    def visit(node: ast.AST, lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}:{node.lineno} imports by a relative name"
            if node.module and node.module.split(".")[0] == "weft":
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    yield Import(module, node.lineno, whole if whole in MODULES else node.module, lazy)
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "weft":
                    yield Import(module, node.lineno, alias.name, lazy)
        lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, lazy)

    yield from visit(ast.parse(MODULES[module].read_text()), False)


ALL = [found for module in MODULES for found in imports_of(module)]


def test_imports_point_one_way() -> None:
    wrong = [str(found) for found in ALL if ROOMS.index(room_of(found.imported)) > ROOMS.index(room_of(found.module))]
    assert not wrong, "\n".join(wrong)


def test_imports_of_other_rooms_inside_functions_have_a_reason() -> None:
    lazy = {(found.module, room_of(found.imported)) for found in ALL if found.lazy}
    lazy = {(module, room) for module, room in lazy if room != room_of(module)}
    used = set()
    for module, room in sorted(lazy):
        reasons = [key for key in LAZY if f"{module}.".startswith(f"{key[0]}.") and key[1] in ("*", room)]
        assert reasons, f"{module} imports {room} inside a function: say why in LAZY, or import it at the top"
        used.update(reasons)
    assert used == set(LAZY), f"no such import is left: {set(LAZY) - used}"


def test_every_room_exists_and_every_module_has_one() -> None:
    assert {room_of(module) for module in MODULES} == set(ROOMS)


def test_what_runs_inside_a_function_of_a_cloud_imports_nothing_of_weft() -> None:
    for file in (ROOT / "weft_function").glob("*.py"):
        assert not re.search(r"^\s*(from|import) weft[. ]", file.read_text(), re.MULTILINE), file.name


def places() -> dict[str, int]:
    """The row of README's table that names each room, by path."""
    table = (ROOT / "README.md").read_text().split("## Where things are")[1]
    found: dict[str, int] = {}
    for number, line in enumerate(line for line in table.splitlines() if line.startswith("| `")):
        for path in re.findall(r"`(weft/[\w/]+(?:\.py)?)/?`", line.split("|")[1]):
            found[path.removesuffix(".py").strip("/").replace("/", ".")] = number
    return found


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in ("weft", "weft.__main__")])
def test_the_readme_names_every_room_in_this_order(room: str) -> None:
    rows = places()
    if room not in rows:  # a module that has a place of its own, in the package that README names
        room = room.rsplit(".", 1)[0]
        assert room in rows, f"README does not say where {room} is"
        return
    later = [other for other in ROOMS[ROOMS.index(room) :] if other in rows]
    assert all(rows[other] >= rows[room] for other in later), f"README shows {room} after what imports it"
