"""Models that a script or notebook defines, or has made, reach the workers of its run, and are trained as they are."""

import linecache
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import weft
from weft.config import make_config
from weft.errors import UserError
from weft.launch.handing import MODULE, pack, unpack
from weft.layers import GAT, GCN, ModelConfig, Stack, build_model

TINY = "synthetic:tiny"
SETTINGS = {"quiet": True, "threads": 1, "train": {"epochs": 3, "precision": "float64"}}

FIRST = """
import math
from dataclasses import dataclass
import torch, weft
from torch import nn, relu
from torch.nn import functional as F
from beside import factor

WIDTH, NAMES, KIND = 12, ("lin", "out"), torch.float64
x = torch.ones(3)  # has the name of a local variable below, and is not asked for

@dataclass
class Sizes:
    hidden: int = WIDTH

class Base(nn.Module):
    scale = math.sqrt(4)

    def __init__(self, num_in, num_out):
        super().__init__()
        self.lin = nn.Linear(num_in, Sizes().hidden)
        self.out = nn.Linear(Sizes().hidden, num_out)
"""
SECOND = """
def later():
    return helper(1.0)

def helper(value):
    return value * factor if value < 2 else later()

class Own(Base):
    @staticmethod
    def half(rows: torch.Tensor) -> torch.Tensor:
        return rows / self_made(2)

    def forward(self, graph, x):
        x = relu(self.lin(x + graph.aggregate(x, "mean"))) * later()
        return self.half(self.out(F.elu(graph.aggregate(x, "mean")))) * self.scale

self_made = float

def build(num_in, num_out, config):
    return Own(num_in, num_out)
"""
ADDED = """
table = torch.arange(3.0)

def hungry(num_in, num_out, config):
    return nn.Linear(num_in, len(table))

def outer():
    def inner(num_in, num_out, config):
        return Own(num_in, num_out)
    return inner

nested, nameless = outer(), lambda num_in, num_out, config: Own(num_in, num_out)
"""


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What `__main__` is in a notebook: cells that were run one after another, and a module beside it."""
    (tmp_path / "beside.py").write_text("factor = 1.0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    for number, cell in enumerate((FIRST, SECOND, ADDED)):
        name = f"<cell {number} of {tmp_path}>"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        exec(compile(cell, name, "exec", dont_inherit=True), vars(main))
    yield main
    for name in (MODULE, "beside"):
        sys.modules.pop(name, None)


def test_what_a_definition_uses_goes_with_it_and_nothing_else(notebook: ModuleType) -> None:
    packed = pack(notebook.build)
    assert b"class Own(Base)" in packed and b"WIDTH = 12" in packed and b"class Sizes" in packed
    for unused in (b"NAMES", b"KIND", b"table", b"torch.ones", b"hungry"):
        assert unused not in packed
    built = unpack(packed)(16, 4, None)
    assert type(built).__module__ == MODULE and type(built) is not notebook.Own
    built.load_state_dict(notebook.Own(16, 4).state_dict())


def test_a_notebooks_model_trains_on_any_number_of_workers_alike(notebook: ModuleType, tmp_path: Path) -> None:
    runs = [
        weft.train(TINY, notebook.build, workers=workers, run=tmp_path / f"run{workers}", **SETTINGS)
        for workers in (1, 2)
    ]
    losses = [[record["train_loss"] for record in run.metrics] for run in runs]
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)
    assert runs[0].config.model.name == "given:build"
    assert runs[1].evaluate() == pytest.approx(runs[0].evaluate())
    outputs = torch.from_numpy(runs[0].outputs().values)
    torch.testing.assert_close(torch.from_numpy(runs[1].outputs().values), outputs, rtol=1e-9, atol=1e-12)
    written = [file for file in (tmp_path / "run2").rglob("*") if file.is_file()]
    assert written and not any(b"class Own" in file.read_bytes() for file in written)
    with pytest.raises(
        UserError, match=r"the model of this run, build, was given as an object .* weft.Run\(PATH, model="
    ):
        weft.Run(runs[1].path).outputs()
    again = weft.Run(runs[0].path, model=notebook.build)
    assert (again.predict(TINY).values == outputs.numpy()).all() and isinstance(again.model(), notebook.Own)
    more = {**SETTINGS, "train": {"epochs": 4, "precision": "float64"}}
    assert len(weft.train(TINY, notebook.build, run=runs[0].path, resume=True, **more).metrics) == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hungry", r"the model uses 'table', a Tensor of this script or notebook, which cannot be handed to other"),
        ("nested", r"the model uses outer.<locals>.inner, which is defined inside of another definition"),
        ("nameless", r"the model uses <lambda>, which is a lambda"),
    ],
)
def test_what_has_no_text_trains_on_one_worker_and_is_refused_on_several(
    notebook: ModuleType, tmp_path: Path, name: str, message: str
) -> None:
    given = getattr(notebook, name)
    with pytest.raises(UserError, match=message):
        weft.train(TINY, given, workers=2, run=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()
    if name != "hungry":
        weft.train(TINY, given, run=tmp_path / "one", **SETTINGS)


def test_source_that_was_edited_since_is_refused(notebook: ModuleType) -> None:
    file = notebook.build.__code__.co_filename
    lines = [line.replace("rows / self_made(2)", "rows / self_made(2) + 1") for line in linecache.getlines(file)]
    linecache.cache[file] = (1, None, lines, file)
    with pytest.raises(UserError, match="the source of Own is no longer what was run: run the script or"):
        pack(notebook.build)
    del linecache.cache[file]
    with pytest.raises(UserError, match=r"the source of build cannot be found \(was it typed at a prompt\?\)"):
        pack(notebook.build)


# -- models as objects -------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """Every kind of state that goes over."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.blocks = nn.ModuleList([nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5)), nn.PReLU()])
        self.register_buffer("offset", torch.randn(4), persistent=False)
        self.settings, self.act = (
            {"names": ("a", "b"), "sizes": [1, 2.5], "none": None, "kind": torch.float32},
            torch.tanh,
        )
        self.first.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[0](self.act(self.second(self.first(x))))
        return self.blocks[1](x) + self.offset


def test_a_module_is_rebuilt_with_all_that_it_is_made_of() -> None:
    model = Tied().train()
    model(torch.randn(8, 4))  # moves the statistics of the norm
    model.blocks.eval()
    found = unpack(pack(model))
    assert isinstance(found, Tied) and found is not model
    assert found.second.weight is found.first.weight and not found.first.bias.requires_grad
    assert found.settings == model.settings and found.act is torch.tanh
    assert found.training and not found.blocks[0].training
    assert found.state_dict().keys() == model.state_dict().keys() and "offset" not in found.state_dict()
    rows = torch.randn(5, 4)
    assert torch.equal(found(rows), model(rows))
    with torch.no_grad():
        found.first.weight.zero_()
    assert model.first.weight.abs().sum() > 0


def test_what_a_module_cannot_take_along_is_named() -> None:
    model = Tied()
    model.blocks[1].graph = weft.load(TINY)
    with pytest.raises(UserError, match=r"^Tied.blocks.1.graph is a Graph, and several workers .*model=build"):
        pack(model)
    del model.blocks[1].graph
    model.first.register_forward_hook(lambda *_: None)
    with pytest.raises(UserError, match=r"Tied.first has hooks"):
        pack(model)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_that_was_made_already_trains_on_from_its_weights(tmp_path: Path, workers: int) -> None:
    """The weights that a run begins with by itself, given to it, make the same run."""
    settings = {**SETTINGS, "workers": workers}
    named = weft.train(TINY, {"name": "gat", "hidden": 4}, run=tmp_path / "named", **settings)
    torch.manual_seed(0)
    model = build_model(ModelConfig(name="gat", hidden=4), 16, 4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    run = weft.train(TINY, model, run=tmp_path / "given", **settings)
    assert run.summary["weights_sha256"] == named.summary["weights_sha256"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()), "it stays as it was"
    assert run.evaluate() == named.evaluate()
    with torch.no_grad():
        model.layers[0].weight.mul_(1.5)
    other = weft.train(TINY, model, run=tmp_path / "other", **settings)
    assert other.summary["weights_sha256"] != named.summary["weights_sha256"]


def test_models_that_workers_can_import_are_named_and_others_refused(tmp_path: Path) -> None:
    from weft.run import model_section

    assert model_section("gcn") == ({"name": "gcn"}, None)
    assert model_section({"name": Tied, "hidden": 3}) == ({"name": f"{__name__}:Tied", "hidden": 3}, None)
    stack = Stack([GCN(16, 8), GAT(8, 4, heads=1)])
    assert model_section(stack) == ({"name": "given:Stack"}, stack)
    with pytest.raises(UserError, match="not a int"):
        model_section(7)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="was given as an object"):
        weft.run.start(make_config({"data": TINY, "model": {"name": "given:Stack"}, "run": str(tmp_path / "run")}))
