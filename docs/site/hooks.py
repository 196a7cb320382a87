"""What the site has beside the pages in docs/: the README as its home, files that pages link to, and the reference.

Pages are written for readers of the repository. A link that leaves docs/ leads on the site to a page with that file.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference_pages import commands_page, python_page, settings_page

ROOT = Path(__file__).parents[2]
PAGES = {  # of the repository, by where they are on the site
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}
WIDE = ("promises.md", "reference/settings.md")  # pages of tables, which need the width of their contents' list
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)(?=[)#])")
FENCE = re.compile(r"^(```+).*?^\1\s*$", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash", ".toml": "toml", ".md": "markdown"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made here to those of docs/."""
    made = {site: (ROOT / name).read_text() for name, site in PAGES.items()}
    made |= {
        "reference/python.md": python_page(),
        "reference/settings.md": settings_page(),
        "reference/commands.md": commands_page(),
    }
    sources = {page: page_of_file(path) for path, page in linked_files()}
    for uri, content in {**made, **sources}.items():
        files.append(File.generated(config, uri, content=content))
    for name in ("logo.svg", "site.css"):  # of docs/site/, which is no part of the site otherwise
        files.append(File.generated(config, f"looks/{name}", content=(ROOT / "docs" / "site" / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turns the links of a page, which hold in the repository, to those that hold on the site."""
    uri = page.file.src_uri
    if uri in WIDE:
        page.meta["hide"] = ["toc"]
    home = next((name for name, site in PAGES.items() if site == uri), f"docs/{uri}")
    if uri.startswith(("reference/", "files/")):
        return markdown
    here = PurePosixPath(uri).parent.as_posix()

    def turned(found: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(home), found[1]))
        site = site_page(target)
        return found[1] if site is None else os.path.relpath(site, here)

    return outside_code(markdown, lambda text: LINK.sub(turned, text))


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Signatures in the reference have the names that the package gives to what it shows, where they are others."""
    return html.replace('"nf">open_graph<', '"nf">load<') if page.file.src_uri == "reference/python.md" else html


def outside_code(markdown: str, change: Any) -> str:
    """A page with its text changed, and its code blocks as they are."""
    parts, at = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [change(markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, change(markdown[at:])])


def site_page(target: str) -> str | None:
    """Where the site has a file of the repository; None: nowhere, so that the build names the link."""
    if target in PAGES:
        return PAGES[target]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"files/{target}.md" if (ROOT / target).exists() else None


def linked_files() -> Iterator[tuple[Path, str]]:
    """Files outside docs/ that pages link to, those in folders that they link to, and their pages."""
    targets: set[str] = set()
    for page in (*(ROOT / "docs").glob("*.md"), *(ROOT / name for name in PAGES)):
        folder = page.parent.relative_to(ROOT).as_posix()
        outside_code(page.read_text(), lambda text, at=folder: targets.update(targets_of(text, at)) or "")
    for target in sorted(targets):
        page = site_page(target)
        if page is None or not page.startswith("files/"):
            continue
        inside = [path.relative_to(ROOT).as_posix() for path in files_in(ROOT / target)]
        yield from ((ROOT / name, f"files/{name}.md") for name in [target, *inside] if name not in targets - {target})


def targets_of(text: str, folder: str) -> list[str]:
    return [os.path.normpath(os.path.join(folder, found)) for found in LINK.findall(text)]


def files_in(folder: Path) -> list[Path]:
    """The files of a folder that belong to the repository; none where it is a file."""
    if not folder.is_dir():
        return []
    listed = subprocess.run(["git", "ls-files", str(folder)], cwd=ROOT, capture_output=True, text=True, check=False)
    return [ROOT / name for name in listed.stdout.split()] or list(folder.rglob("*.py"))


def page_of_file(path: Path) -> str:
    """A page that shows a file, or says what is in a folder."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        inside = (file.relative_to(path).as_posix() for file in files_in(path))
        return f"# {name}\n\n" + "".join(f"- [{one}]({path.name}/{one}.md)\n" for one in inside)
    if path.suffix == ".ipynb":
        return f"# {name}\n\n{cells_of(json.loads(path.read_text()))}"
    return f"# {name}\n\n{fenced(path.read_text(), LANGUAGES.get(path.suffix, 'text'))}"


def cells_of(notebook: dict[str, Any]) -> str:
    """The cells of a notebook, and what they printed."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"^#", "##", text, flags=re.MULTILINE))  # the page's own title stands above
            continue
        parts.append(fenced(text, "python"))
        for output in cell.get("outputs", ()):
            printed = "".join(output.get("text", output.get("data", {}).get("text/plain", "")))
            parts += [fenced(printed, "text")] if printed else []
    return "\n\n".join(parts)


def fenced(text: str, language: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````"
