"""Presets: names for settings of the orthogonal choices, nothing else."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from weft.comm import codec_named
from weft.errors import UserError, unknown


class ExchangeConfig(BaseModel):
    """How rows move between workers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan: Literal["full"] = Field("full", description="full: every epoch is one step over the whole graph")
    schedule: Literal["materialised"] = Field(
        "materialised", description="materialised: the whole halo, then aggregate"
    )
    codec: str = Field("raw", description="raw, or bf16: half the bytes, rounded to 8 bits of mantissa")


class Preset(BaseModel):
    model_config = ConfigDict(frozen=True)

    about: str
    exchange: dict[str, str] = {}
    max_workers: int | None = None


PRESETS = {
    "full": Preset(about="full graph, whole halo exchanged before each aggregation, exact"),
    "single": Preset(about="full graph in one process", max_workers=1),
}


def resolve_strategy(name: str, exchange: dict[str, object], workers: int) -> dict[str, object]:
    """The exchange settings of a preset with what the user set on top of it."""
    if name not in PRESETS:
        raise unknown("strategy", name, PRESETS)
    preset = PRESETS[name]
    if preset.max_workers is not None and workers > preset.max_workers:
        raise UserError(f"strategy {name} runs in {preset.max_workers} process, not {workers}: use --strategy full")
    return {**preset.exchange, **exchange}


def check_exchange(config: ExchangeConfig, model: str, reduce: str) -> None:
    """Refuses combinations that would be wrong, with the reason."""
    codec_named(config.codec)
    if config.codec != "raw" and model == "sage" and reduce == "max":
        raise UserError(
            f"codec {config.codec} rounds rows, and a maximum of rounded rows is biased: use codec raw with max"
        )
