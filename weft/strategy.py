"""Presets: names for settings of the orthogonal choices, nothing else."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from weft.aggregate import MATERIALISED, OVERLAPPED, RAW, Format, FormatTraits, Schedule, codec_names, format_named
from weft.aggregate.reducers import Traits
from weft.errors import UserError, unknown
from weft.sample import Plan, SampleConfig

SMALLEST_BLOCK = 1024  # rows: a smaller one would be on its way for longer than it is worked on


class ExchangeConfig(BaseModel):
    """How rows move between workers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan: Literal["full"] | Plan = Field(
        "full",
        description="an epoch is one step over the whole graph; or a step per minibatch, of each worker its own and "
        "fetched by itself (independent), or several fetched together (macrobatch), or shared by all workers (split)",
    )
    schedule: Literal["materialised", "overlapped", "sequential"] = Field(
        "materialised",
        description="the whole halo, then aggregate; the same, own rows computed meanwhile; or block by block",
    )
    blocks: int = Field(
        1,
        ge=1,
        description="blocks of a worker's rows, each of 1024 at least (sequential): more hold less and take longer",
    )
    prefetch: int = Field(1, ge=0, description="blocks in flight while one is absorbed (sequential)")
    keep_packed: bool = Field(
        False, description="keep blocks as they travelled instead of fetching them again in backward (sequential)"
    )
    codec: str = Field(
        "raw",
        description=f"how rows travel in training: {', '.join(codec_names())} (2, 4 or 8 bits by row), or your own",
    )
    assign_cycle: int = Field(50, ge=1, description="epochs between two choices of bits (adaptive)")
    fidelity: float = Field(
        0.5, ge=0.0, le=1.0, description="0: fewest bytes, 1: least error; between: a balance of both (adaptive)"
    )
    delta: bool = Field(
        False,
        description="send differences to the last epoch's rows "
        f"({', '.join(codec_names(lambda traits: traits.takes_delta))}; not sequential)",
    )


class MemoryConfig(BaseModel):
    """What is kept, what is computed again, and where rows lie."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rematerialise: bool = Field(False, description="compute each layer's dense part again in backward, keep aggregates")
    restrict: Literal["auto", "always", "never"] = Field(
        "auto", description="train only on vertices that can reach a training vertex; auto: where a quarter is spared"
    )
    spill: Literal["auto", "always", "never"] = Field(
        "auto", description="rows in files instead of memory; auto: one worker with several parts, sequential"
    )
    check: bool = Field(True, description="refuse at the start what will not fit in memory")


class Preset(BaseModel):
    model_config = ConfigDict(frozen=True)

    about: str
    settings: dict[str, dict[str, Any]] = {}
    max_workers: int | None = None


PRESETS = {
    "auto": Preset(about="whichever of these is modelled to be fastest and fits in memory (see weft plan); not adaqp"),
    "full": Preset(about="full graph, whole halo exchanged before each aggregation, exact"),
    "single": Preset(about="full graph in one process", max_workers=1),
    "sar": Preset(
        about="full graph in little memory: block by block, rebuilt in backward, exact",
        settings={"exchange": {"schedule": "sequential", "blocks": 4}, "memory": {"rematerialise": True}},
    ),
    "adaqp": Preset(
        about="full graph, 2 to 8 bits a value on the wire, chosen by row, own rows computed meanwhile",
        settings={"exchange": {"schedule": "overlapped", "codec": "adaptive"}},
    ),
    "minibatch": Preset(
        about="sampled minibatches, each planned and fetched by itself",
        settings={"exchange": {"plan": "independent"}},
    ),
    "batchgnn": Preset(
        about="sampled minibatches, several planned and fetched together while others train",
        settings={"exchange": {"plan": "macrobatch"}},
    ),
    "gsplit": Preset(
        about="sampled minibatches, each shared by all workers: every vertex computed once, by its owner",
        settings={"exchange": {"plan": "split"}},
    ),
    "dorylus": Preset(
        about="full graph in intervals, products in a pool of workers or in cloud functions, exact",
        settings={"executor": {"name": "pool"}},
    ),
}


def resolve_strategy(name: str, settings: Mapping[str, Any], workers: int) -> dict[str, Any]:
    """Settings with those of a preset under them, section by section."""
    if name not in PRESETS:
        raise unknown("strategy", name, PRESETS)
    preset = PRESETS[name]
    exchange = settings.get("exchange", {})
    if name == "auto" and isinstance(exchange, Mapping) and exchange.get("plan", "full") != "full":
        raise UserError("strategy auto chooses exchange.plan: leave that out, or use another strategy")
    if preset.max_workers is not None and workers > preset.max_workers:
        raise UserError(f"strategy {name} runs in {preset.max_workers} process, not {workers}: use --strategy full")
    resolved = dict(settings)
    for section, values in preset.settings.items():
        given = settings.get(section, {})
        if isinstance(given, Mapping):
            resolved[section] = {**values, **given}
    return resolved


def make_schedule(config: ExchangeConfig, rows: int, workers: int, parts_per_worker: int) -> Schedule:
    """The order in which rows come. `rows`: of the whole graph, so that every worker decides alike.

    A worker has as many blocks as it has parts, or more where that is asked for and they do not become too small.
    """
    if config.schedule != "sequential":
        return OVERLAPPED if config.schedule == "overlapped" else MATERIALISED
    keep: Literal["packed", "nothing"] = "packed" if config.keep_packed else "nothing"
    worthwhile = min(config.blocks, rows // workers // SMALLEST_BLOCK) if workers > 1 else 1
    blocks = max(parts_per_worker, worthwhile, 1)
    return Schedule(rounds="each", keep=keep, prefetch=config.prefetch, blocks=blocks)


def check_exchange(config: ExchangeConfig, reducer: Traits) -> None:
    """Refuses combinations that would be wrong, with the reason; `reducer`: of the model's aggregations."""

    def tolerated(traits: FormatTraits) -> bool:
        return traits.rounding == "none" or (traits.rounding == "float" and reducer.tolerates_bf16)

    traits = make_format(config).traits
    if reducer.unroundable and not tolerated(traits):
        raise UserError(f"codec {config.codec} rounds rows, and {reducer.unroundable}: use codec {_either(tolerated)}")
    if config.delta and not traits.takes_delta:
        takers = _listed(codec_names(lambda traits: traits.takes_delta), "and")
        raise UserError(f"exchange.delta is for codecs {takers}, not {config.codec}")
    if config.delta and config.schedule == "sequential":
        raise UserError(
            "exchange.delta keeps the last rows of the whole halo, which schedule sequential exists not to hold: use "
            "schedule materialised or overlapped"
        )
    if config.keep_packed and config.schedule != "sequential":
        raise UserError("exchange.keep_packed is for schedule sequential: materialised keeps its rows anyway")
    if config.keep_packed and not traits.packs:
        raise UserError(
            f"exchange.keep_packed keeps rows as they travelled, and codec {config.codec} packs nothing: use codec "
            f"{_either(lambda traits: traits.packs)}, or schedule materialised, which keeps whole rows"
        )


def _check_fanout(name: str, fanout: Sequence[int], layers: int) -> None:
    if len(fanout) != layers:
        raise UserError(
            f"{name} has {len(fanout)} entries, but the model has {layers} layers: give one for each, first that of "
            "the seeds"
        )
    if any(count < -1 or count == 0 for count in fanout):
        raise UserError(f"{name} says how many neighbours are drawn at each hop: 1 or more, or -1 for all")


def check_plan(exchange: ExchangeConfig, sample: SampleConfig, layers: int) -> None:
    """Refuses settings of minibatches that make no sense, with the reason."""
    if exchange.plan == "full":
        return
    if exchange.plan == "split":
        _check_split(exchange)
    else:
        _check_apart(exchange, sample)
    for name, fanout in (("sample.fanout", sample.fanout), ("sample.eval_fanout", sample.eval_fanout)):
        if fanout is not None:
            _check_fanout(name, fanout, layers)
    if isinstance(sample.macrobatch, int) and sample.macrobatch < 1:
        raise UserError(f"sample.macrobatch is {sample.macrobatch}: at least one minibatch is planned at a time")


def _check_split(exchange: ExchangeConfig) -> None:
    if exchange.schedule != "materialised":
        raise UserError(
            f"schedule {exchange.schedule} orders the exchanges of a full graph; in those of plan split own rows are "
            "computed meanwhile as it is: leave it out"
        )
    if exchange.delta or make_format(exchange).traits.adaptive:
        what = "exchange.delta" if exchange.delta else f"codec {exchange.codec}"
        raise UserError(
            f"{what} goes by the rows that the same messages had in epochs before, and those of a minibatch are others "
            f"in every step: use codec {_either(lambda traits: traits.packs and not traits.adaptive)}"
        )


def _check_apart(exchange: ExchangeConfig, sample: SampleConfig) -> None:
    if exchange.schedule != "materialised":
        raise UserError(
            f"schedule {exchange.schedule} orders the exchanges of a full graph, and plan {exchange.plan} has none in "
            "its steps: leave it out, or use plan full"
        )
    if make_format(exchange) is not RAW:
        raise UserError(
            f"codec {exchange.codec} is for rows that are exchanged in steps, and plan {exchange.plan} has none such: "
            "for the features of minibatches set sample.features=bfloat16, int8, int4 or int2"
        )
    if sample.alone_hops:
        raise UserError(f"sample.alone_hops is for plan split: plan {exchange.plan} shares no hop")


def _either(having: Callable[[FormatTraits], bool]) -> str:
    """The codecs of such traits, for a sentence."""
    return _listed(codec_names(having), "or")


def _listed(names: Sequence[str], last: str) -> str:
    return f"{', '.join(names[:-1])} {last} {names[-1]}" if len(names) > 1 else "".join(names)


def make_format(config: ExchangeConfig) -> Format:
    return format_named(config.codec, config.assign_cycle, config.fidelity, config.delta)
