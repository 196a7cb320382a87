"""What a layer declares of itself, for whoever places, restricts, samples or fuses it."""

from dataclasses import dataclass

from torch import nn

from weft.aggregate.topology import Reduce, Weight


@dataclass(frozen=True)
class LayerTraits:
    """As they stand, those of a layer of which nothing is known: it may do whatever the verbs of a graph allow."""

    any_level: bool = False  # asks for nothing but the rows and edges that it is handed, however many rows come out
    restrictable: bool = False  # an output row depends on its in-neighbours' rows and its own: others may be left out
    adds_loops: bool = False  # gives every vertex an edge from itself
    wants_degrees: bool = False  # has coefficients that depend on the degrees of sources
    reads_input: bool = True  # reads its input otherwise than through `input_aggregate`
    input_aggregate: tuple[Reduce, Weight] | None = None  # the one aggregate of its input that it reads, if it has no
    # parameters: of constant rows it is a constant, and can be kept
    output_is_free: bool = False  # its output may be written to: nothing keeps it for backward
    fuses_bias: bool = False  # forward takes `add_bias=False`: then whoever comes next adds `bias`
    edge_data: frozenset[str] | None = None  # what it reads of edges beside their ends, of EDGE_DATA; None: not known
    unroundable: str = ""  # why no row that it reads may travel as small integers, beside what its name says of it
    attention: bool = False  # reads the rows of sources again in the backward pass
    by_relation: bool = False  # has an aggregate for each relation


NOTHING_KNOWN = LayerTraits()


def traits_of(layer: nn.Module) -> LayerTraits:
    """What a layer's class (or the layer itself, by a property) declares as `traits`, if it holds for its `forward`."""
    if not holds_for_forward(layer, "traits"):
        return NOTHING_KNOWN
    traits = layer.traits
    if not isinstance(traits, LayerTraits):
        raise TypeError(f"{type(layer).__name__}.traits is a {type(traits).__name__}, not a LayerTraits")
    return traits


def holds_for_forward(layer: nn.Module, declaration: str) -> bool:
    """Whether a class attribute of this name describes the `forward` that runs.

    It does for the class that has it and for subclasses, but not for one that overrides `forward` (or `combine`) and
    leaves the declaration as it was.
    """
    if "forward" in vars(layer):
        return False
    for kind in type(layer).__mro__:
        if declaration in vars(kind):
            return True
        if "forward" in vars(kind) or "combine" in vars(kind):
            return False
    return False
