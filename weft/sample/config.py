"""The settings of minibatches: how they are drawn, and how their rows come."""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from weft.kernels.sampling import Method
from weft.sample.moments import Sees
from weft.sample.sampler import Drawing
from weft.sample.store import AtRest

Plan = Literal["independent", "macrobatch", "split"]  # each worker its own; so, several at a time; all together

FANOUTS = (15, 10, 5)


class SampleConfig(BaseModel):
    """Minibatches: how they are drawn, and how their rows come."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch: int = Field(1024, ge=1, description="training vertices of a step, over all workers together")
    fanout: tuple[int, ...] | None = Field(
        None, description="in-neighbours drawn at each hop, first those of the seeds; -1: all (default 15, 10, 5, 5...)"
    )
    method: Method = Field(
        "neighbour",
        description="so many of each vertex, alike; by edge weight; labor: vertices choose alike; or the last in time",
    )
    macrobatch: int | Literal["auto"] = Field(
        "auto", description="minibatches that are drawn and fetched together (macrobatch, split); auto: while it pays"
    )
    alone_hops: int = Field(
        0, ge=0, description="hops from the seeds on that workers do not share, each having its own seeds' (plan split)"
    )
    dependent: int = Field(1, ge=1, description="steps that follow one another and draw alike: they share more rows")
    memory_mib: int = Field(1024, ge=1, description="rows held for coming minibatches, on each worker, at most")
    hot_mib: float = Field(0.0, ge=0.0, description="rows of other workers that are kept on each, hottest first")
    features: AtRest = Field(
        "float32", description="input rows at rest and on the wire; integers are rounded once, without bias"
    )
    eval_fanout: tuple[int, ...] | None = Field(
        None, description="in-neighbours drawn in evaluation where edges have times; unless set all, which is exact"
    )
    cache_aggregates: Literal["auto", "always", "never"] = Field(
        "auto",
        description="aggregate constant input once, over all neighbours; auto: where minibatches read fewer rows then",
    )
    overlap: bool = Field(True, description="draw and fetch the next minibatches while these train")


def fanouts_for(config: SampleConfig, layers: int) -> tuple[int, ...]:
    """The fan-out of each hop, from the seeds on."""
    if config.fanout is not None:
        return config.fanout
    return (FANOUTS + FANOUTS[-1:] * layers)[:layers]


@dataclass(frozen=True)
class Needs:
    """What a model wants to know of sampled vertices."""

    layers: int
    loops: bool  # every vertex with a loop, which is not left to the draw
    degrees: bool  # those of sources, for symmetric coefficients
    ids: bool  # global ids of all vertices, for what is keyed by them
    counted: int = 0  # hops from the seeds within which statistics of rows are taken, and a vertex must count once


def drawing_for(config: SampleConfig, needs: Needs, seed: int, sees: Sees = "all") -> Drawing:
    """How the neighbourhoods of a run's minibatches are drawn."""
    fanouts = fanouts_for(config, needs.layers)
    return Drawing(fanouts, config.method, seed, needs.loops, config.dependent, needs.counted, sees, needs.degrees)
