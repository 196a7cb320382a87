"""The documentation site: it builds without a warning, holds what it should, and its links lead somewhere."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import weft
from weft.cli.app import VERBS
from weft.config import list_settings

ROOT = Path(__file__).parents[1]
for package in ("mkdocs", "material", "mkdocstrings_handlers.python"):
    pytest.importorskip(package, reason="the site's tools are not installed: make docs, or pip install '.[docs]'")


def build(folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT, out)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


class Html(HTMLParser):
    """The ids of a page, what it links to, and its text."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []  # what the browser fetches to show the page
        self.text = ""
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            if name in ("href", "src") and value and (tag, name) != ("link", "canonical"):
                self.links.append(value)
                if tag in ("link", "script", "img"):
                    self.loads.append(value)

    def handle_data(self, data: str) -> None:
        self.text += data


def pages(site: Path) -> Iterator[tuple[Path, Html]]:
    return ((file, Html(file)) for file in sorted(site.rglob("*.html")) if file.name != "404.html")


def test_every_link_leads_to_a_file_and_a_heading_and_none_to_another_server(site: Path) -> None:
    read = dict(pages(site))
    wrong = []
    for file, page in read.items():
        for link in page.links:
            to = urlsplit(link)
            if to.scheme or to.netloc:
                continue
            target = (file.parent / unquote(to.path)).resolve() if to.path else file
            known = read[target].ids if target in read else set()
            if not target.is_file() or (to.fragment and target in read and unquote(to.fragment) not in known):
                wrong.append(f"{file.relative_to(site)}: {link}")
    assert len(read) > 35 and not wrong, wrong
    elsewhere = {link for page in read.values() for link in page.loads if urlsplit(link).netloc}
    assert not elsewhere, "a page loads nothing from other servers"


def test_the_reference_has_every_name_setting_and_command(site: Path) -> None:
    python, settings, commands = (
        Html(site / "reference" / f"{name}.html") for name in ("python", "settings", "commands")
    )
    assert {f"weft.{name}" for name in weft.__all__} <= python.ids
    assert all(f"weft.{name}" in python.text for name in weft.__all__)
    words = " ".join(settings.text.split())
    assert all(one.key in words and " ".join(one.about.split()) in words for one in list_settings())
    assert {f"weft-{verb.__name__}" for verb in VERBS} | {"weft-lambda-serve"} <= commands.ids
    assert "graphsage" in commands.text.lower() or "sage" in commands.text, "names that are looked up are filled in"
    assert "{layers}" not in commands.text and "{methods" not in commands.text


def test_every_page_of_the_docs_is_on_the_site_and_so_are_the_files_that_they_link_to(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").is_file(), page.name
    script = Html(site / "files" / "examples" / "people" / "train.py.html")
    assert (ROOT / "examples" / "people" / "train.py").read_text().splitlines()[-1].strip() in script.text
    assert "#" in Html(site / "index.html").text and (site / "files" / "examples" / "notebook.ipynb.html").is_file()


def test_a_link_that_leads_nowhere_ends_the_build(tmp_path: Path) -> None:
    for name in ("docs", "examples", "weft"):
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("mkdocs.yml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    page = tmp_path / "docs" / "times.md"
    page.write_text(page.read_text() + "\n[nowhere](../examples/nowhere.py)\n")
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode != 0 and "nowhere.py" in done.stdout + done.stderr
