"""What `import weft` gives: every name is documented, its example runs, and no function hides a package."""

import doctest
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import weft
from weft.errors import UserError

ROOT = Path(__file__).parents[1]
ERRORS = [
    name for name in weft.__all__ if inspect.isclass(found := getattr(weft, name)) and issubclass(found, Exception)
]
NEEDS = {"from_pyg": "torch_geometric", "to_pyg": "torch_geometric", "from_dgl": "dgl", "to_dgl": "dgl"}


@pytest.mark.parametrize("name", weft.__all__)
def test_everything_has_an_example_that_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    documented = getattr(weft, name)
    text = inspect.getdoc(documented)
    assert text is not None
    example = doctest.DocTestParser().get_doctest(text, {"weft": weft, "torch": torch}, name, None, None)
    assert example.examples, f"weft.{name} has no example"
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], exc_type=ImportError)
    said: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert result.failed == 0, "".join(said)


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_says_when_it_is_raised(name: str) -> None:
    assert re.match(r"Raised (for|when) ", inspect.getdoc(getattr(weft, name)) or "")


@pytest.mark.parametrize("name", [name for name in weft.__all__ if inspect.isroutine(getattr(weft, name))])
def test_functions_have_types(name: str) -> None:
    signature = inspect.signature(getattr(weft, name))
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(one.annotation is not inspect.Parameter.empty for one in signature.parameters.values())


def test_names_are_sorted_and_there() -> None:
    assert weft.__all__ == sorted(weft.__all__)
    assert {"init_workers", "open_part", "Loader", "all_reduce_gradients", "DistributedGraph"} <= set(weft.__all__)


def packages_and_modules() -> list[str]:
    """The modules of weft itself, and all packages below it."""
    found = [one.name for one in pkgutil.iter_modules(weft.__path__) if one.name != "__main__"]
    deeper = (one.name.removeprefix("weft.") for one in pkgutil.walk_packages(weft.__path__, "weft.") if one.ispkg)
    return sorted({*found, *deeper})


@pytest.mark.parametrize("name", packages_and_modules())
def test_nothing_hides_a_package(name: str) -> None:
    module = importlib.import_module(f"weft.{name}")
    found: object = weft
    for step in name.split("."):
        found = getattr(found, step)
    assert found is module and isinstance(found, ModuleType)


def test_the_training_loop_can_be_imported() -> None:
    import weft.training.loop

    assert inspect.isfunction(weft.training.loop.fit) and inspect.isfunction(weft.train)


# -- weft.layers.pyg -------------------------------------------------------------------------------------------------


def python(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)


def test_pyg_is_imported_when_its_layers_are_asked_for() -> None:
    pytest.importorskip("torch_geometric")
    done = python(
        "import sys, weft.layers\n"
        "assert 'torch_geometric' not in sys.modules\n"
        "print(weft.layers.pyg.Convolution.__name__, 'torch_geometric' in sys.modules)"
    )
    assert done.stdout.split() == ["Convolution", "True"], done.stderr


def test_without_pyg_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "weft.layers.pyg", raising=False)
    monkeypatch.delitem(vars(weft.layers), "pyg", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch_geometric"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NoPyG(), *sys.meta_path])
    with pytest.raises(UserError, match=r"weft\.layers\.pyg needs torch_geometric, which is not installed: pip"):
        _ = weft.layers.pyg
    with pytest.raises(AttributeError, match="has no attribute 'pig'"):
        _ = weft.layers.pig


class NoPyG:
    """Finds nothing under PyG's name."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] == "torch_geometric":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
