"""The native module as it was built: from which sources, and with which functions."""

import ast
import inspect
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from weft.cli import doctor
from weft.kernels import build, native_available

ROOT = Path(__file__).parents[2]
STUB = ROOT / "weft" / "kernels" / "_native.pyi"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "src", tmp_path / "src")
    shutil.copy(ROOT / "CMakeLists.txt", tmp_path)
    return tmp_path


def built_from(root: Path) -> ModuleType:
    module = ModuleType("weft.kernels._native")
    module.source_hash = build.source_hash(root)  # type: ignore[attr-defined]
    return module


def test_a_build_of_these_sources_is_used(checkout: Path) -> None:
    assert build.problem_with(built_from(checkout), checkout) is None


@pytest.mark.parametrize("change", ["edited", "added", "removed"])
def test_a_build_of_other_sources_says_so(checkout: Path, change: str) -> None:
    module = built_from(checkout)
    file = checkout / "src" / "kernels" / ("new.h" if change == "added" else "spmm.cpp")
    if change == "removed":
        file.unlink()
    else:
        file.write_text("// another interface\n")
    said = build.problem_with(module, checkout)
    assert said is not None and "built from other sources" in said and "`make setup` (or `pip install -e .`)" in said


def test_a_build_that_does_not_know_its_sources_says_so(checkout: Path) -> None:
    assert "built from other sources" in str(build.problem_with(ModuleType("weft.kernels._native"), checkout))


def test_a_wheel_has_no_sources_to_compare_with(checkout: Path, tmp_path: Path) -> None:
    module = built_from(checkout)
    shutil.rmtree(checkout / "src")
    assert build.problem_with(module, checkout) is None


def test_a_module_that_is_not_there_or_cannot_be_loaded() -> None:
    assert "not built" in str(build.problem_with(ModuleNotFoundError("no module")))
    said = build.problem_with(ImportError("libgomp.so.1: cannot open shared object file"))
    assert "cannot be loaded (libgomp.so.1" in str(said) and "pip install -e ." in str(said)


def test_the_doctor_names_what_to_run(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = built_from(checkout)
    (checkout / "src" / "bind.h").write_text("// another interface\n")
    monkeypatch.setattr(build, "problem", build.problem_with(module, checkout))
    finding = next(finding for finding in doctor.examine() if finding.name == "native kernels")
    assert finding.state == "missing" and "`make setup`" in finding.text


@pytest.mark.skipif(not native_available, reason="the native module is not built")
def test_the_stub_is_that_of_the_module() -> None:
    """The same functions; in each, arguments in the same order, of the same types, and the same result."""
    from weft.kernels import _native

    tree = ast.parse(STUB.read_text())
    stubbed = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    built = {name: found for name, found in inspect.getmembers(_native, callable) if not name.startswith("__")}
    assert sorted(stubbed) == sorted(built)
    alias = {str(node.target.id): ast.unparse(node.value) for node in tree.body if _is_alias(node)}  # type: ignore[attr-defined]
    for name, node in stubbed.items():
        signature = getattr(built[name], "__nb_signature__")[0][0]  # noqa: B009  (a function of nanobind's)
        assert [_spelled(annotation, alias) for annotation in _annotations(node)] == _types(signature), name


def _is_alias(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and node.value is not None


def _spelled(annotation: str, alias: dict[str, str]) -> str:
    """An annotation of the stub without its aliases."""
    while (plain := re.sub(r"\b[A-Z]\w+\b", lambda found: alias.get(found[0], found[0]), annotation)) != annotation:
        annotation = plain
    return annotation


def _types(signature: str) -> list[str]:
    """Of every argument and of the result, as the stub spells them, from what nanobind says of a function."""
    signature = re.sub(r"(?:numpy\.)?ndarray\[dtype=(\w+), shape=\([^)]*\)[^]]*\]", r"NDArray[np.\1]", signature)
    parsed = ast.parse(re.sub(r" = \\\d+", "", signature) + ": ...").body[0]
    assert isinstance(parsed, ast.FunctionDef)
    return _annotations(parsed)


def _annotations(function: ast.FunctionDef) -> list[str]:
    """Of every argument, and of the result."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    found = [argument.annotation for argument in arguments] + [function.returns]
    return [ast.unparse(annotation) for annotation in found if annotation is not None]
