"""A model as stages: each is a vertex program, and the gathering before it.

Everything between two gatherings depends on one vertex alone, so it is one vertex program: the end of a layer,
normalisation, activation and dropout, and the beginning of the next layer. Rows are multiplied before they are gathered
if that makes them narrower. If the first layer aggregates its input as it is, the aggregate is constant and is computed
once; such a model has one gathering less than layers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from weft.aggregate.topology import Reduce, Weight
from weft.errors import UserError
from weft.kernels.hash import hash_key
from weft.layers import Stack, traits_of
from weft.layers.encoder import TypeEncoder
from weft.layers.separation import BeforeGather, Gathering, SplitsAtGather, VertexFunction
from weft.layers.traits import holds_for_forward
from weft_function.handler import LOSS
from weft_function.program import Op, Program

MOST_TYPES = 15  # with features: three operations each of a program's
SUPPORTED = "gcn, sage (mean or sum), gat, and stacks of weft.layers.Separable layers of your own"


def features_of(kind: int | str) -> str:
    """What programs call the features of an interval's vertices of a type."""
    return f"x.{kind}"


def places_of(kind: int | str) -> str:
    """What programs call the numbers of these vertices in the interval."""
    return f"places.{kind}"


@dataclass(frozen=True)
class Stage:
    program: Program
    gathering: Gathering | None  # None: the stage reads constants only
    dropouts: Mapping[str, int]  # by name of the key: which random draw of a whole-graph pass it is
    input_aggregate: tuple[Reduce, Weight] | None = None  # read as "gathered" by a stage without a gathering

    def dropout_keys(self, seed: int, epoch: int) -> dict[str, int]:
        """The keys of the stage's random draws, equal to those of a whole-graph pass."""
        return {name: hash_key(seed, epoch, draw) for name, draw in self.dropouts.items()}


def compile_stages(model: nn.Module, multi_label: bool = False, aggregates_input: bool = True) -> tuple[Stage, ...]:
    """The stages of a model; raises UserError if a part of it depends on more than a vertex's own rows."""
    if not isinstance(model, Stack):
        raise UserError(f"executors pool and lambda run a weft.layers.Stack of {SUPPORTED}: use executor inline")
    config = model.config
    if not all(isinstance(norm, VertexFunction) for norm in model.norms):
        raise UserError("batch normalisation needs all vertices at once: use model.norm=layer, or executor inline")
    if config.input_dropout or config.attention_dropout:
        raise UserError("executors pool and lambda keep input and attention whole: set their dropout to 0")
    if model.columns is not None:
        raise UserError(
            "functions are sent no learned columns: ingest without --learned-columns, or use another strategy"
        )
    if model.embedding is not None:
        raise UserError("executors pool and lambda need features: learned rows change in every epoch")
    if model.encoder is not None:
        _check_encoder(model.encoder)
    return _Compiler(model, multi_label, aggregates_input).compile()


def _check_encoder(encoder: TypeEncoder) -> None:
    if len(encoder.columns):
        raise UserError(
            "functions are sent no learned columns: ingest types without learned_columns, or use another strategy"
        )
    if len(encoder.weights) > MOST_TYPES:
        raise UserError(
            f"programs of functions have room for {MOST_TYPES} types of vertices, and there are "
            f"{len(encoder.weights)}: use another strategy than dorylus"
        )


def user_modules(stages: Sequence[Stage]) -> tuple[str, ...]:
    """The modules of a user's own that the stages call."""
    calls = {op.call for stage in stages for program in _programs(stage) for op in program.ops if op.call is not None}
    return tuple(sorted({call.partition(":")[0] for call in calls}))


def _programs(stage: Stage) -> Iterator[Program]:
    yield stage.program
    if stage.gathering is not None and stage.gathering.edge is not None:
        yield stage.gathering.edge


@dataclass
class _StageBuilder:
    """The program of one stage, as far as it is built. Weights have their names in the model."""

    ops: list[Op] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    dropouts: dict[str, int] = field(default_factory=dict)

    def read(self, name: str) -> str:
        """Makes a value an input of the program."""
        if name not in self.inputs:
            self.inputs.append(name)
        return name

    def add(
        self,
        op: str,
        *inputs: str,
        weights: Sequence[str] = (),
        settings: Mapping[str, float] | None = None,
        key: str | None = None,
        call: str | None = None,
    ) -> str:
        output = f"{op}{len(self.ops)}"
        self.ops.append(Op(op, inputs, output, tuple(weights), tuple(sorted((settings or {}).items())), key, call))
        return output

    def finish(self, outputs: tuple[str, ...], gathering: Gathering | None) -> Stage:
        used = {name for op in self.ops for name in op.inputs}
        inputs = tuple(name for name in self.inputs if name in used)
        # Only what depends on the stage before has a gradient.
        constants = tuple(name for name in inputs if gathering is None or name not in ("gathered", "carried"))
        return Stage(Program(inputs, outputs, tuple(self.ops), constants), gathering, dict(self.dropouts))


@dataclass(frozen=True)
class _ModuleOps:
    """An OpBuilder for one module of the model."""

    builder: _StageBuilder
    module: str

    def weight_name(self, weight: str) -> str:
        return f"{self.module}.{weight}"

    def add(
        self,
        op: str,
        *inputs: str,
        weights: Sequence[str] = (),
        settings: Mapping[str, float] | None = None,
        call: str | None = None,
    ) -> str:
        names = [self.weight_name(weight) for weight in weights]
        return self.builder.add(op, *inputs, weights=names, settings=settings, call=call)


class _Compiler:
    def __init__(self, model: Stack, multi_label: bool, aggregates_input: bool) -> None:
        self._model, self._multi_label, self._aggregates_input = model, multi_label, aggregates_input
        self._builder = _StageBuilder()
        self._gathering: Gathering | None = None  # before the current stage
        self._draws = 1  # random draws of the whole-graph pass so far; the input's dropout is the first
        self._stages: list[Stage] = []

    def compile(self) -> tuple[Stage, ...]:
        layers = [_checked(layer) for layer in self._model.layers]
        input_aggregate = self._input_aggregate()
        x = self._builder.read("x") if self._model.encoder is None else self._encoded(self._model.encoder)
        for depth, layer in enumerate(layers):
            before = None
            if depth or input_aggregate is None:
                before = layer.before_gather(self._module(f"layers.{depth}"), x)
                if before is None:
                    raise _unsupported(self._model.layers[depth])
                self._cut(before, depth, x)
                self._draws += before.num_draws
            x = self._after_gather(layer, depth, before, x)
            if depth + 1 < len(layers):
                x = self._between_layers(depth + 1, x)
        if self._model.output is not None:
            x = self._model.output.vertex_ops(self._module("output"), self._between_layers(len(layers), x))
        self._add_loss(x)
        self._stages[0] = replace(self._stages[0], input_aggregate=input_aggregate)
        return tuple(self._stages)

    def _input_aggregate(self) -> tuple[Reduce, Weight] | None:
        """The constant aggregate that the first layer reads, if it is to be computed once."""
        first = self._model.layers[0]
        constant = self._aggregates_input and self._model.encoder is None
        return traits_of(first).input_aggregate if constant else None

    def _encoded(self, encoder: TypeEncoder) -> str:
        """Rows of one width, of an interval's vertices of all types."""
        merged = [self._builder.read("ids")]  # the first input says how many rows there are
        for kind in encoder.weights:
            module = self._module("encoder")
            rows = module.add("linear", self._builder.read(features_of(kind)), weights=[f"weights.{kind}"])
            merged += [module.add("bias", rows, weights=[f"biases.{kind}"]), self._builder.read(places_of(kind))]
        return self._builder.add("merge", *merged)

    def _module(self, name: str) -> _ModuleOps:
        return _ModuleOps(self._builder, name)

    def _cut(self, before: BeforeGather, depth: int, x: str) -> None:
        """Ends the stage before a gathering."""
        carry = x if before.keeps_input else before.own
        if self._model.config.residual and not before.keeps_input:
            skip = self._skip(depth, x)
            carry = skip if carry is None else self._builder.add("add", carry, skip)
        values = {"sent": before.sent, "source": before.source, "target": before.target, "carry": carry}
        outputs = {name: value for name, value in values.items() if value is not None}
        for name, value in outputs.items():
            self._builder.ops.append(Op("identity", (value,), name))
        self._end_stage(tuple(outputs))
        self._gathering = before.gathering

    def _after_gather(self, layer: SplitsAtGather, depth: int, before: BeforeGather | None, x: str) -> str:
        """The layer's output. `before`: None if the aggregate of its input is constant."""
        gathered = self._builder.read("gathered")
        if before is not None:
            x = self._builder.read("carried") if "carry" in self._stages[-1].program.outputs else ""
        has_input = before is None or before.keeps_input
        out = layer.after_gather(self._module(f"layers.{depth}"), gathered, x if has_input else "", before is None)
        if has_input:
            x = self._skip(depth, x) if self._model.config.residual else ""
        if x:
            out = self._builder.add("add", out, x)
        if getattr(layer, "bias", None) is not None:
            out = self._builder.add("bias", out, weights=[f"layers.{depth}.bias"])
        return out

    def _skip(self, depth: int, x: str) -> str:
        return self._builder.add("linear", x, weights=[f"skips.{depth}"])

    def _between_layers(self, depth: int, x: str) -> str:
        """Normalisation, activation and dropout before layer `depth`."""
        config = self._model.config
        if len(self._model.norms):
            norm = self._model.norms[depth - 1]
            assert isinstance(norm, VertexFunction)
            x = norm.vertex_ops(self._module(f"norms.{depth - 1}"), x)
        x = self._builder.add(config.activation, x)
        self._draws += 1
        if config.dropout:
            key = f"dropout{depth}"
            self._builder.dropouts[key] = self._draws
            ids = self._builder.read("ids")
            x = self._builder.add("dropout", x, ids, settings={"p": config.dropout}, key=key)
        return x

    def _add_loss(self, logits: str) -> None:
        inputs = (logits, self._builder.read("targets"), self._builder.read("counts"))
        self._builder.ops.append(Op("binary_cross_entropy" if self._multi_label else "cross_entropy", inputs, LOSS))
        self._end_stage((LOSS,))

    def _end_stage(self, outputs: tuple[str, ...]) -> None:
        self._stages.append(self._builder.finish(outputs, self._gathering))
        self._builder = _StageBuilder()


def _checked(layer: nn.Module) -> SplitsAtGather:
    if not isinstance(layer, SplitsAtGather) or not holds_for_forward(layer, "before_gather"):
        raise _unsupported(layer)
    return layer


def _unsupported(layer: nn.Module) -> UserError:
    carried = {"features": "model.edge_features=off", "weight": "model.edge_weights=false"}
    read = sorted(carried.keys() & (traits_of(layer).edge_data or frozenset()))
    if read and isinstance(layer, SplitsAtGather):
        settings = " and ".join(carried[name] for name in read)
        return UserError(
            f"functions are sent rows of vertices alone, and {type(layer).__name__} reads what edges carry: set "
            f"{settings}, or use another strategy than dorylus"
        )
    return UserError(f"executors pool and lambda run {SUPPORTED}, not {type(layer).__name__}: use executor inline")
