"""What the pages about the inside name exists: paths, classes, functions, settings; and links lead somewhere."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from weft.config import known_keys

ROOT = Path(__file__).parents[1]
PAGES = ("architecture.md", "one-step.md", "glossary.md")
COMMANDS = ("git ", "weft ", "--")
TORCH = {"isend", "irecv", "backward", "__call__"}  # what others define
ROW = re.compile(r"^\|(?: \d+ \|)? `(weft[\w/]+\.py)` \| `(\w+)` \|", re.MULTILINE)


def spans_of(page: str) -> list[str]:
    """All that stands in code font in a page."""
    return re.findall(r"`([^`]+)`", (ROOT / "docs" / page).read_text())


@cache
def definitions(file: Path) -> frozenset[str]:
    """Names that a module gives to something: functions, classes, their arguments and attributes, variables."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return frozenset(found)


@cache
def words() -> frozenset[str]:
    """Every name of the package, and every word that it uses as a value (of a setting, of a byte class)."""
    found: set[str] = set()
    for file in (*(ROOT / "weft").rglob("*.py"), *(ROOT / "weft_function").rglob("*.py")):
        found |= {file.stem} | definitions(file)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w.]+", node.value):
                found.add(node.value)
    return frozenset(found)


def exists(span: str) -> bool:
    """Whether what is written in code font names something; text that is no name is not asked about."""
    if span.startswith(COMMANDS) or " " in span:
        return True
    if re.fullmatch(r"[\w.-]+(/[\w.-]*)+", span) or span.endswith((".py", ".md")):
        return (ROOT / span).exists()
    if re.fullmatch(r"\w+\.\w+(=\w+)?", span) and span.split("=")[0] in known_keys():
        return True
    if "my_" in span or span.endswith(".json") or span == ".npy":  # a user's own file, a file of a run
        return True
    if span in words():
        return True
    name = re.match(r"[\w.]+", span)
    assert name, f"`{span}` is no name: put it into plain text"
    return set(name[0].split(".")) <= words() | TORCH


@pytest.mark.parametrize("page", PAGES)
def test_names_exist(page: str) -> None:
    missing = sorted({span for span in spans_of(page) if not exists(span)})
    assert not missing, f"{page} names what does not exist: {', '.join(missing)}"


@pytest.mark.parametrize("page", PAGES)
def test_functions_are_in_the_files_that_are_named_beside_them(page: str) -> None:
    rows = ROW.findall((ROOT / "docs" / page).read_text())
    assert rows or page != "one-step.md"
    missing = [f"{file}: {name}" for file, name in rows if name not in definitions(ROOT / file)]
    assert not missing, f"{page}: {', '.join(missing)}"


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))])
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)[^)]*\)", (ROOT / page).read_text())
    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
    assert not missing, f"{page} links to {', '.join(missing)}"


def test_the_readme_names_what_exists() -> None:
    table = (ROOT / "README.md").read_text().split("## Where things are")[1]
    paths = set(re.findall(r"`([\w/.-]+/|[\w/]+\.(?:py|md))`", table))
    missing = {path for path in paths if not any((ROOT / folder / path).exists() for folder in ("", "tests"))}
    assert len(paths) > 20 and not missing, f"README names {missing}"


def test_words_of_the_glossary_stand_in_order_and_once() -> None:
    found = re.findall(r"^\*\*(.+?)\.\*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert len(found) > 80
    assert found == sorted(found, key=str.lower) and len({word.lower() for word in found}) == len(found)
