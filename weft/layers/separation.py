"""Computation separation: how a layer is cut at its gathering, so that its products can be computed elsewhere.

A layer that can be cut has two methods. `before_gather` adds the operations before the gathering to a program, and
describes the gathering. `after_gather` adds those that come after it. Between two gatherings an executor then has
one vertex program: the end of a layer, what lies between layers, and the beginning of the next layer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from weft.aggregate.topology import Reduce, Weight
from weft_function.program import Op, Program


class OpBuilder(Protocol):
    """Adds operations to the vertex program that is being built. Weights are named as in the layer."""

    def add(
        self,
        op: str,
        *inputs: str,
        weights: Sequence[str] = (),
        settings: Mapping[str, float] | None = None,
        call: str | None = None,
    ) -> str:
        """The name of the operation's output."""
        ...

    def weight_name(self, weight: str) -> str:
        """The name in the model of one of the layer's weights."""
        ...


@dataclass(frozen=True)
class Gathering:
    """How rows of in-neighbours become one row: the edges before a stage, and their function, if there is one."""

    reduce: Reduce | Literal["attend", "attend_plain"]
    weight: Weight
    width: int  # columns gathered
    heads: int = 1
    terms: int = 0  # columns of each end that the edge function reads; 0: it reads the gathered columns
    edge: Program | None = None  # reads "source" and "target" of each edge, computes "logits"
    edge_back: Program | None = None  # reads "row_max" and "row_sum", too, and computes "attention"

    @property
    def forward_width(self) -> int:
        """Columns that are sent forward."""
        return self.width + self.terms

    @property
    def backward_width(self) -> int:
        """Columns that are sent backward: gradients, and what is needed to compute the attention of edges again."""
        if self.edge is None:
            return self.width
        return self.width + (self.terms or self.width) + 3 * self.heads


@dataclass(frozen=True)
class BeforeGather:
    """What a layer computes before its gathering: names of values in the program, and how they are gathered."""

    sent: str  # gathered by out-neighbours
    gathering: Gathering
    source: str | None = None  # terms of the edge function, if it does not read what is sent
    target: str | None = None
    own: str | None = None  # added to what the layer computes after the gathering
    keeps_input: bool = False  # whether `after_gather` reads the layer's input; then there is no `own`
    num_draws: int = 0  # random draws of the layer in a pass over the whole graph, even if it drops nothing out


@runtime_checkable
class SplitsAtGather(Protocol):
    """A layer that can be cut at its gathering."""

    def before_gather(self, ops: OpBuilder, x: str) -> BeforeGather | None:
        """None: the layer cannot be cut as it is configured."""
        ...

    def after_gather(self, ops: OpBuilder, gathered: str, x: str, of_input: bool) -> str:
        """The layer's output, without its bias and `own`.

        `x`: the layer's input, which is there if `keeps_input` or `of_input`. `of_input`: the input itself was
        gathered, in place of what `before_gather` computes.
        """
        ...


@runtime_checkable
class VertexFunction(Protocol):
    """A module that computes each vertex's row from that row alone, such as layer normalisation."""

    def vertex_ops(self, ops: OpBuilder, x: str) -> str: ...


def edge_programs(ops: Sequence[Op]) -> tuple[Program, Program]:
    """`Gathering.edge` and `Gathering.edge_back` from the operations that compute "logits"."""
    inputs = ("source", "target")
    attention = Op("edge_softmax", ("logits", "row_max", "row_sum"), "attention")
    forward = Program(inputs, ("logits",), tuple(ops))
    backward = Program((*inputs, "row_max", "row_sum"), ("attention",), (*ops, attention))
    return forward, backward
