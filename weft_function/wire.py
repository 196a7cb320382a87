"""Messages between graph servers and functions: their layout and its checks. Nothing is ever pickled.

A message is a JSON header followed by the little-endian bytes of its tensors, each at a multiple of 64 bytes, so that
tensors can be used in the buffer in which they were received. Sizes follow from the header; a message with other sizes
than its header announces is refused. `weft_function.session` authenticates the whole message.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from weft_function.memory import aligned, padding

MAX_TENSORS = 128
MAX_HEADER_BYTES = 1 << 18
MAX_MESSAGE_BYTES = 1 << 30
MAX_DIMENSIONS = 4
MAX_TENSOR_NAME = 80

_DTYPES = {name: np.dtype(name) for name in ("float32", "float64", "int64", "int32", "uint16", "uint8", "bool")}
_BFLOAT16 = "bfloat16"  # on the wire only: the upper half of a float32
_BETWEEN_WORKER_AND_SERVER = ("register", "registered", "task", "response", "failed", "missing_weights", "stop", "bye")
_BETWEEN_SERVERS = ("rows", "gradients", "squared_norm", "weights")
_KINDS = _BETWEEN_WORKER_AND_SERVER + _BETWEEN_SERVERS

Frame = bytes | memoryview


class Refused(ValueError):
    """A message that is not authentic, out of sequence or malformed. Nothing in it was used."""


class Malformed(Refused):
    """An authentic message that is not well formed. The messages after it can be read."""


@dataclass(frozen=True)
class Message:
    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)


def pack(message: Message, as_bfloat16: bool = False) -> list[Frame]:
    """The header, then each tensor and its padding. `as_bfloat16`: float32 tensors are rounded to bfloat16."""
    assert message.kind in _KINDS and len(message.tensors) <= MAX_TENSORS
    entries: list[list[Any]] = []
    frames: list[Frame] = []
    for name, tensor in message.tensors.items():
        dtype, body = _encode(tensor, as_bfloat16)
        entries.append([name, dtype, list(tensor.shape)])
        frames += [body, bytes(padding(body.nbytes))]
    header = {"kind": message.kind, "fields": dict(message.fields), "tensors": entries}
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * padding(len(text))
    assert len(text) <= MAX_HEADER_BYTES
    return [text, *(frame for frame in frames if len(frame))]


def unpack(payload: np.ndarray, header_bytes: int) -> Message:
    """Parses a message or raises Malformed. Its tensors are read-only views of `payload`."""
    header = _parse_header(bytes(payload[:header_bytes]))
    kind, fields, entries = header["kind"], header["fields"], header["tensors"]
    body = payload[header_bytes:]
    body.flags.writeable = False
    tensors: dict[str, np.ndarray] = {}
    start = 0
    for entry in entries:
        name, dtype, shape = _parse_entry(entry)
        stored = _DTYPES["uint16" if dtype == _BFLOAT16 else dtype].newbyteorder("<")
        size = stored.itemsize
        for length in shape:
            size *= length
        if name in tensors or start + size > len(body):
            raise Malformed(f"tensor '{name}' is repeated or longer than the message")
        tensor = body[start : start + size].view(stored)
        tensors[name] = (aligned(from_bfloat16(tensor)) if dtype == _BFLOAT16 else tensor).reshape(shape)
        start += size + padding(size)
    if start != len(body):
        raise Malformed(f"the message has {len(body)} bytes of tensors, but its header announces {start}")
    return Message(kind, fields, tensors)


def _parse_header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise Malformed("the header is not valid") from None
    valid = (
        isinstance(header, dict)
        and set(header) == {"kind", "fields", "tensors"}
        and header["kind"] in _KINDS
        and isinstance(header["fields"], dict)
        and isinstance(header["tensors"], list)
        and len(header["tensors"]) <= MAX_TENSORS
    )
    if not valid:
        raise Malformed("the header is not valid")
    return dict(header)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not allowed in a header")


def _parse_entry(entry: Any) -> tuple[str, str, list[int]]:
    valid = (
        isinstance(entry, list)
        and len(entry) == 3
        and isinstance(entry[0], str)
        and 0 < len(entry[0]) <= MAX_TENSOR_NAME
        and isinstance(entry[1], str)
        and (entry[1] in _DTYPES or entry[1] == _BFLOAT16)
        and isinstance(entry[2], list)
        and len(entry[2]) <= MAX_DIMENSIONS
        and all(type(length) is int and 0 <= length <= MAX_MESSAGE_BYTES for length in entry[2])
    )
    if not valid:
        raise Malformed("the header announces a tensor that is not valid")
    return entry[0], entry[1], entry[2]


def _encode(tensor: np.ndarray, as_bfloat16: bool) -> tuple[str, memoryview]:
    tensor = np.ascontiguousarray(tensor)
    if tensor.dtype.name not in _DTYPES:
        raise TypeError(f"tensors of dtype {tensor.dtype.name} cannot be sent")
    name = tensor.dtype.name
    if as_bfloat16 and tensor.dtype == np.float32:
        name, tensor = _BFLOAT16, to_bfloat16(tensor)
    if sys.byteorder != "little":
        tensor = tensor.astype(tensor.dtype.newbyteorder("<"))
    return name, tensor.reshape(-1).view(np.uint8).data


def size_of(frames: Sequence[Frame]) -> int:
    return sum(frame.nbytes if isinstance(frame, memoryview) else len(frame) for frame in frames)


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Flat uint16 bits, rounded to nearest, ties to even. NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).reshape(-1).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(x).reshape(-1), np.uint16(0x7FC0), rounded)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)
