"""How the rows of a pass look on the wire.

A format makes a `Wire` for each aggregation of a pass, which hands out the codec of every round and direction. One
that treats all rows alike is a `PlainFormat` of a codec; `weft.aggregate.quantised` and `weft.aggregate.adaptive` hold
those whose messages are integers. `weft.aggregate.codecs` knows formats by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from weft.aggregate.topology import Edges, Topology
from weft.comm import Codec, Communicator, raw

Histogram = dict[str, dict[str, dict[int, int]]]  # layer -> direction -> bits -> rows


@dataclass(frozen=True)
class Aggregation:
    """One aggregation of a training pass, as a format sees it."""

    number: int  # in the pass
    layer: str  # as it is named to people
    kind: str  # byte class of its forward messages
    topology: Topology
    edges: Edges
    linear: bool  # its coefficients are constants, which the blocks hold
    exact: tuple[int, ...]  # source tensors that must not be rounded
    seed: int
    epoch: int
    step: tuple[int, ...]


class Wire(NamedTuple):
    """The codecs of one aggregation."""

    kind: str  # byte class of its forward messages
    forward: Callable[[int, int, int], Codec]  # of (round, source tensor, its columns)
    backward: Callable[[int, int, int], Codec]


@dataclass(frozen=True)
class FormatTraits:
    """What the rest of a run asks of a format.

    `rounding`: "none", rows arrive as they were; "float", as shorter floating-point numbers; "integer", as integers
    between a row's smallest and largest value.
    """

    rounding: Literal["none", "float", "integer"]
    packs: bool  # messages are not the rows' own memory, and can be kept as they travelled
    takes_delta: bool = False  # can send differences to the rows of the epoch before (exchange.delta)
    adaptive: bool = False  # chooses between epochs, by the messages of epochs before


class BitsChosen(NamedTuple):
    """What a format chose at the end of an epoch."""

    seconds: float  # that choosing took
    rows: Histogram  # of all workers: how many rows will travel with how many bits


class Format(ABC):
    """How rows look on the wire. What it remembers from epoch to epoch is part of a checkpoint."""

    name: str
    traits: FormatTraits

    @abstractmethod
    def wire(self, aggregation: Aggregation) -> Wire:
        """The codecs of an aggregation that begins."""

    def end_epoch(self, epoch: int, comm: Communicator) -> BitsChosen | None:
        """Chooses how rows travel from here on, where that follows from earlier epochs and it is time to.

        None: nothing was chosen. All workers call it together.
        """
        return None

    def state(self) -> dict[str, Tensor]:
        """What the next epochs depend on, of this worker."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Goes on as a worker that gave this state; it must hold the same rows."""
        return None


class PlainFormat(Format):
    """Every row in the form of one codec."""

    def __init__(self, codec: Codec, rounding: Literal["none", "float", "integer"]) -> None:
        self.codec, self.name = codec, codec.name
        self.traits = FormatTraits(rounding, packs=not codec.verbatim)

    def wire(self, aggregation: Aggregation) -> Wire:
        return plain_wire(self.codec, aggregation.kind)


def plain_wire(codec: Codec, kind: str) -> Wire:
    """One codec for all messages of an aggregation."""
    return Wire(kind, lambda *_: codec, lambda *_: codec)


RAW = PlainFormat(raw, "none")
