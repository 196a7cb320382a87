"""A model as stages: what each does to a vertex's rows, and what is gathered between one and the next.

A layer is gathering between two products. Whatever lies between two gatherings belongs to one vertex alone, so it is
one vertex function: the end of a layer, normalisation, activation and dropout, and the beginning of the next layer.
Rows are multiplied before they are gathered where that makes them narrower. Of layers that aggregate their input as it
is, the first aggregate never changes and is kept, so that such a model has one gathering less than layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from weft.aggregate import hash_key
from weft.aggregate.topology import Reduce, Weight
from weft.errors import UserError
from weft.layers import GAT, GCN, SAGE, LayerNorm, Separable, Stack
from weft_function.program import Op, Program

SUPPORTED = "gcn, sage (mean or sum), gat, and stacks of weft.layers.Separable layers of your own"


@dataclass(frozen=True)
class Gathering:
    """What stands before a stage: how rows of in-neighbours become one row."""

    reduce: Reduce | Literal["attend", "attend_plain"]
    weight: Weight
    width: int  # columns gathered
    heads: int = 1
    terms: int = 0  # columns of each end's own that the edge function sees; 0: it sees what is gathered
    edge: Program | None = None  # reads "source" and "target" of each edge, makes "logits"
    edge_back: Program | None = None  # reads "most" and "total", too, and makes "share"

    @property
    def sent_width(self) -> int:
        return self.width + self.terms

    @property
    def returned_width(self) -> int:
        """Columns that go the other way: gradients, and what edges' weights can be made of again."""
        if self.edge is None:
            return self.width
        return self.width + (self.terms or self.width) + 3 * self.heads


@dataclass(frozen=True)
class Stage:
    """A vertex function, and what it waits for."""

    program: Program
    gathering: Gathering | None  # None: the stage reads what never changes
    drops: Mapping[str, int]  # names of dropout keys, and which draw of the pass they are


def edge_programs(ops: Sequence[Op]) -> tuple[Program, Program]:
    """A function of edges that makes "logits", and what its way back runs."""
    reads = ("source", "target")
    share = Op("share", ("logits", "most", "total"), "share")
    return Program(reads, ("logits",), tuple(ops)), Program((*reads, "most", "total"), ("share",), (*ops, share))


def compile_stages(model: nn.Module, multi_label: bool = False, aggregates_input: bool = True) -> tuple[Stage, ...]:
    """The stages of a model; a clear error where one of its parts needs more than a vertex's own rows."""
    if not isinstance(model, Stack):
        raise UserError(f"executors pool and lambda run a weft.layers.Stack of {SUPPORTED}: use executor inline")
    config = model.config
    if config.norm == "batch":
        raise UserError("batch normalisation needs all vertices at once: use model.norm=layer, or executor inline")
    if config.input_dropout or config.attention_dropout:
        raise UserError("executors pool and lambda keep input and attention whole: set their dropout to 0")
    if model.embedding is not None:
        raise UserError("executors pool and lambda need features: learned rows change in every epoch")
    return _Compiler(model, multi_label, aggregates_input).stages()


class _Compiler:
    def __init__(self, model: Stack, multi_label: bool, aggregates_input: bool) -> None:
        self._model, self._multi_label, self._aggregates_input = model, multi_label, aggregates_input
        self._ops: list[Op] = []
        self._inputs: list[str] = []
        self._drops: dict[str, int] = {}
        self._draws = 1  # of the pass, the input's dropout being the first
        self._names = 0

    def stages(self) -> tuple[Stage, ...]:
        found: list[Stage] = []
        gathering: Gathering | None = None
        layers = list(self._model.layers)
        kept = isinstance(layers[0], GCN | SAGE) and self._aggregates_input
        x = self._read("x")
        for depth, layer in enumerate(layers):
            if depth == 0 and kept:
                gathered, carried = self._read("gathered"), x
                first = False
            else:
                outputs, following = self._before(layer, depth, x)
                found.append(self._cut(outputs, gathering))
                gathering = following
                gathered, first = self._read("gathered"), True
                carried = self._read("carried") if "carry" in found[-1].program.outputs else ""
            x = self._after(layer, depth, gathered, carried, first)
            if isinstance(layer, GAT):
                self._draws += 1
            if depth + 1 < len(layers):
                x = self._between(depth + 1, x)
        found.append(self._loss(x, gathering))
        return tuple(found)

    # -- the parts of a layer ---------------------------------------------------------------------------------------

    def _before(self, layer: nn.Module, depth: int, x: str) -> tuple[dict[str, str], Gathering]:
        """What is sent and what is carried to the other side of a gathering, and how it is gathered."""
        here = f"layers.{depth}."
        if isinstance(layer, GAT):
            values = self._op("linear", (x,), (here + "weight",))
            out = {
                "sent": values,
                "source": self._op("head_dot", (values,), (here + "source",)),
                "target": self._op("head_dot", (values,), (here + "target",)),
            }
            sum_of_terms = Op("add", ("source", "target"), "sum")
            logits = Op("leaky_relu", ("sum",), "logits", settings=(("slope", layer.slope),))
            programs = edge_programs((sum_of_terms, logits))
            how = Gathering("attend", None, layer.heads * layer.width, layer.heads, layer.heads, *programs)
            return out | self._skip(depth, x, ""), how
        if isinstance(layer, Separable):
            return self._separable(layer, depth, x)
        if isinstance(layer, GCN):
            narrow = layer.num_out <= layer.num_in
            out = {"sent": self._op("linear", (x,), (here + "weight",)) if narrow else x}
            how = Gathering("sum", "symmetric", min(layer.num_in, layer.num_out))
            return out | self._skip(depth, x, ""), how
        if isinstance(layer, SAGE) and layer.reduce != "max":
            narrow = layer.num_out <= layer.num_in
            how = Gathering(layer.reduce, None, min(layer.num_in, layer.num_out))
            if not narrow:
                return {"sent": x, "carry": x}, how
            own = self._op("linear", (x,), (here + "root",))
            return {"sent": self._op("linear", (x,), (here + "neighbour",))} | self._skip(depth, x, own), how
        raise UserError(f"executors pool and lambda run {SUPPORTED}, not {type(layer).__name__}: use executor inline")

    def _separable(self, layer: Separable, depth: int, x: str) -> tuple[dict[str, str], Gathering]:
        sent = self._op("call", (x,), _weights(depth, layer.before_weights), call=_where(layer, "before"))
        out = {"sent": sent, "carry": x}
        if not layer.has_edges():
            return out, Gathering(layer.reduce, None, layer.num_sent)
        weights = _weights(depth, layer.edge_weights)
        programs = edge_programs([Op("call", ("source", "target"), "logits", weights, call=_where(layer, "edge"))])
        return out, Gathering("attend_plain", None, layer.num_sent, layer.heads, 0, *programs)

    def _skip(self, depth: int, x: str, carried: str) -> dict[str, str]:
        if self._model.config.residual:
            skip = self._op("linear", (x,), (f"skips.{depth}",))
            carried = self._op("add", (carried, skip)) if carried else skip
        return {"carry": carried} if carried else {}

    def _after(self, layer: nn.Module, depth: int, gathered: str, carried: str, was_sent: bool) -> str:
        """The layer's output, bias included."""
        here, out = f"layers.{depth}.", gathered
        if isinstance(layer, GAT):
            if not layer.concat and layer.heads > 1:
                out = self._op("head_mean", (out,), settings={"heads": layer.heads})
        elif isinstance(layer, GCN):
            if not was_sent or layer.num_out > layer.num_in:
                out = self._op("linear", (out,), (here + "weight",))
        elif isinstance(layer, SAGE):
            if not was_sent or layer.num_out > layer.num_in:
                neighbours = self._op("linear", (out,), (here + "neighbour",))
                out = self._op("add", (neighbours, self._op("linear", (carried,), (here + "root",))))
                if self._model.config.residual:
                    out = self._op("add", (out, self._op("linear", (carried,), (f"skips.{depth}",))))
                carried = ""
        elif isinstance(layer, Separable):
            weights = _weights(depth, layer.after_weights)
            out = self._op("call", (out, carried), weights, call=_where(layer, "after"))
            if self._model.config.residual:
                out = self._op("add", (out, self._op("linear", (carried,), (f"skips.{depth}",))))
            carried = ""
        if not was_sent and isinstance(layer, GCN):
            carried = self._op("linear", (carried,), (f"skips.{depth}",)) if self._model.config.residual else ""
        if carried:
            out = self._op("add", (out, carried))
        return self._op("bias", (out,), (here + "bias",)) if getattr(layer, "bias", None) is not None else out

    def _between(self, depth: int, x: str) -> str:
        config = self._model.config
        if config.norm == "layer":
            norm = self._model.norms[depth - 1]
            assert isinstance(norm, LayerNorm)
            names = (f"norms.{depth - 1}.weight", f"norms.{depth - 1}.bias")
            x = self._op("layer_norm", (x,), names, {"eps": norm.eps})
        x = self._op(config.activation, (x,))
        self._draws += 1
        if config.dropout:
            key = f"dropout{depth}"
            self._drops[key] = self._draws
            x = self._op("dropout", (x, self._read("ids")), settings={"p": config.dropout}, key=key)
        return x

    # -- pieces -----------------------------------------------------------------------------------------------------

    def _read(self, name: str) -> str:
        if name not in self._inputs:
            self._inputs.append(name)
        return name

    def _op(
        self,
        name: str,
        reads: tuple[str, ...],
        weights: tuple[str, ...] = (),
        settings: Mapping[str, float] | None = None,
        key: str | None = None,
        call: str | None = None,
    ) -> str:
        self._names += 1
        made = f"{name}{self._names}"
        self._ops.append(Op(name, reads, made, weights, tuple(sorted((settings or {}).items())), key, call))
        return made

    def _cut(self, outputs: dict[str, str], gathering: Gathering | None) -> Stage:
        """Ends a stage with these outputs, by their public names."""
        for name, made in outputs.items():
            self._ops.append(Op("same", (made,), name))
        return self._finish(tuple(outputs), gathering)

    def _loss(self, logits: str, gathering: Gathering | None) -> Stage:
        reads = (logits, self._read("targets"), self._read("counts"))
        self._ops.append(Op("binary_cross_entropy" if self._multi_label else "cross_entropy", reads, "loss"))
        return self._finish(("loss",), gathering)

    def _finish(self, outputs: tuple[str, ...], gathering: Gathering | None) -> Stage:
        used = {name for op in self._ops for name in op.reads}
        inputs = tuple(name for name in self._inputs if name in used)
        # What a stage gathers and what is carried to it has a gradient, unless that is what never changes.
        constants = tuple(name for name in inputs if gathering is None or name not in ("gathered", "carried"))
        program = Program(inputs, outputs, tuple(self._ops), constants)
        stage = Stage(program, gathering, dict(self._drops))
        self._ops, self._inputs, self._drops, self._names = [], [], {}, 0
        return stage


def _weights(depth: int, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"layers.{depth}.{name}" for name in names)


def _where(layer: Separable, function: str) -> str:
    return f"{type(layer).__module__}:{type(layer).__qualname__}.{function}"


def dropout_keys(stage: Stage, seed: int, epoch: int) -> dict[str, int]:
    """The keys of a stage's draws: those that the whole-graph pass would use."""
    return {name: hash_key(seed, epoch, draw) for name, draw in stage.drops.items()}
