"""Codecs by name: what `exchange.codec` may say.

A new codec costs one file: a `Codec` that says how rows become messages, and

    register_codec("fp16", lambda options: PlainFormat(Float16Codec(), rounding="float"))

in a module `my_codecs`. With WEFT_PLUGINS=my_codecs in the environment every process of a run imports it, and
`exchange.codec=fp16` sends rows so.
"""

from collections.abc import Callable
from dataclasses import dataclass

from weft.aggregate.adaptive import Adaptive
from weft.aggregate.quantised import Quantised
from weft.aggregate.wire import RAW, Format, FormatTraits, PlainFormat
from weft.comm import bf16
from weft.errors import unknown
from weft.plugins import load_plugins


@dataclass(frozen=True)
class CodecOptions:
    """What settings say of a codec beside its name; each takes what it can."""

    cycle: int = 50  # epochs between two choices of bits
    fidelity: float = 0.5  # 0: fewest bytes, 1: least error
    delta: bool = False  # differences to the rows of the epoch before


MakeFormat = Callable[[CodecOptions], Format]

_codecs: dict[str, MakeFormat] = {}


def register_codec(name: str, make: MakeFormat) -> None:
    """Makes `exchange.codec=name` send rows in the format that make(options) returns; every worker must call it."""
    if name in _codecs:
        raise ValueError(f"there is a codec {name!r} already")
    _codecs[name] = make


def codec_names(having: Callable[[FormatTraits], bool] = lambda traits: True) -> list[str]:
    """The codecs that are registered, of those that have certain traits."""
    return [name for name, make in _codecs.items() if having(make(CodecOptions()).traits)]


def format_named(name: str, cycle: int = 50, fidelity: float = 0.5, delta: bool = False) -> Format:
    """The format of a codec that is registered, here or by a module of the user's own."""
    if name not in _codecs:
        load_plugins()
    if name not in _codecs:
        raise unknown("codec", name, _codecs)
    return _codecs[name](CodecOptions(cycle, fidelity, delta))


def _integers(bits: int) -> MakeFormat:
    return lambda options: Quantised(bits, options.delta)


register_codec("raw", lambda options: RAW)
register_codec("bf16", lambda options: PlainFormat(bf16, "float"))
for _bits in (8, 4, 2):
    register_codec(f"int{_bits}", _integers(_bits))
register_codec("adaptive", lambda options: Adaptive(options.cycle, options.fidelity, options.delta))
