"""Messages between a graph server and its functions: sealed, checked before they are parsed, never pickled.

A message is a list of frames: a seal of fixed size, a header in JSON, and one frame of raw little-endian bytes for each
tensor. The seal holds when the message expires, a number that is used once, and an HMAC over all of it; nothing else is
looked at before that is right. Sizes follow from the header, and a frame of another size is refused before anything is
allocated for it.
"""

import hashlib
import hmac
import json
import os
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

VERSION = 1
MOST_TENSORS = 128
MOST_HEADER_BYTES = 1 << 18
MOST_MESSAGE_BYTES = 1 << 30
MOST_DIMENSIONS = 4
KEY_BYTES = 32

_SEAL = struct.Struct("<4sQ16s")  # magic with version, expiry in ms, nonce
_MAC_BYTES = 32
SEAL_BYTES = _SEAL.size + _MAC_BYTES
_MAGIC = b"WFT" + bytes([VERSION])
_DTYPES = {name: np.dtype(name) for name in ("float32", "float64", "int64", "int32", "uint16", "uint8", "bool")}
_BFLOAT16 = "bfloat16"  # float32 without its lower half, on the wire only
_SECONDS_OF_A_MESSAGE = 120.0
_KINDS = ("hello", "task", "answer", "failed", "missing", "rows", "stop", "bye")

Frame = bytes | bytearray | memoryview


class Refused(ValueError):
    """A message that is not ours, or not in order; nothing of it was used."""


@dataclass(frozen=True)
class Message:
    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)


def new_key() -> bytes:
    return os.urandom(KEY_BYTES)


class Seal:
    """One side's hold on a secret: closes messages and opens those of the other side, each of them once."""

    def __init__(
        self,
        key: bytes,
        lasts_until: float | None = None,
        clock: Callable[[], float] = time.time,
        most_bytes: int = MOST_MESSAGE_BYTES,
        halve: bool = False,
    ) -> None:
        """`lasts_until`: when the secret itself is void; `halve`: float32 tensors travel as bfloat16."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        self._key, self._until, self._clock = key, lasts_until, clock
        self._most, self._halve = most_bytes, halve
        self._seen: dict[bytes, int] = {}  # nonce -> expiry in ms, of messages that were opened
        self._forget_at = 0
        self.refused = 0

    def close(self, message: Message) -> list[Frame]:
        assert message.kind in _KINDS and len(message.tensors) <= MOST_TENSORS
        entries, frames = [], []
        for name, tensor in message.tensors.items():
            dtype, body = _leaving(tensor, self._halve)
            entries.append([name, dtype, list(tensor.shape)])
            frames.append(body)
        header = {"kind": message.kind, "fields": dict(message.fields), "tensors": entries}
        text = json.dumps(header, separators=(",", ":")).encode()
        assert len(text) <= MOST_HEADER_BYTES
        expiry = self._clock() + _SECONDS_OF_A_MESSAGE
        if self._until is not None:
            expiry = min(expiry, self._until)
        seal = _SEAL.pack(_MAGIC, int(expiry * 1000), os.urandom(16))
        return [seal + self._mac(seal, [text, *frames]), text, *frames]

    def open(self, frames: Sequence[Frame]) -> Message:
        """The message, or Refused. Tensors are views of the frames, and cannot be written to."""
        try:
            return self._open(frames)
        except Refused:
            self.refused += 1
            raise

    def _open(self, frames: Sequence[Frame]) -> Message:
        if not 2 <= len(frames) <= 2 + MOST_TENSORS:
            raise Refused(f"a message has 2 to {2 + MOST_TENSORS} frames, not {len(frames)}")
        sizes = [len(frame) if isinstance(frame, bytes | bytearray) else frame.nbytes for frame in frames]
        if sizes[0] != SEAL_BYTES or sizes[1] > MOST_HEADER_BYTES or sum(sizes) > self._most:
            raise Refused("frames of a size that no message has")
        sealed = bytes(frames[0])
        seal, mac = sealed[: _SEAL.size], sealed[_SEAL.size :]
        if not hmac.compare_digest(mac, self._mac(seal, frames[1:])):
            raise Refused("a seal that is not ours")
        magic, expiry, nonce = _SEAL.unpack(seal)
        if magic != _MAGIC:
            raise Refused("a message of another version")
        self._use(nonce, expiry)
        return _parse(frames, sizes)

    def _use(self, nonce: bytes, expiry: int) -> None:
        now = int(self._clock() * 1000)
        if expiry < now or (self._until is not None and self._until * 1000 < now):
            raise Refused("a message that has expired")
        if nonce in self._seen:
            raise Refused("a message that has been opened before")
        if now > self._forget_at:  # what has expired is refused anyway
            self._seen = {nonce: until for nonce, until in self._seen.items() if until >= now}
            self._forget_at = now + 10_000
        self._seen[nonce] = expiry

    def _mac(self, seal: bytes, frames: Sequence[Frame]) -> bytes:
        # Digests first, so that no byte can move from one frame to the next.
        parts = [seal, *(hashlib.sha256(frame).digest() for frame in frames)]
        return hmac.digest(self._key, b"".join(parts), "sha256")


def _leaving(tensor: np.ndarray, halve: bool) -> tuple[str, Frame]:
    tensor = np.ascontiguousarray(tensor)
    if tensor.dtype.name not in _DTYPES:
        raise TypeError(f"tensors of {tensor.dtype.name} do not travel")
    if sys.byteorder != "little":
        tensor = tensor.astype(tensor.dtype.newbyteorder("<"))
    if halve and tensor.dtype == np.float32:
        return _BFLOAT16, to_bfloat16(tensor).data.cast("B")
    return tensor.dtype.name, tensor.reshape(-1).view(np.uint8).data


def _parse(frames: Sequence[Frame], sizes: Sequence[int]) -> Message:
    try:
        header = json.loads(bytes(frames[1]))
        kind, fields, entries = header["kind"], header["fields"], header["tensors"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Refused("a header that is none") from None
    if kind not in _KINDS or not isinstance(fields, dict) or not isinstance(entries, list):
        raise Refused("a header that is none")
    if len(entries) != len(frames) - 2:
        raise Refused(f"{len(entries)} tensors are named, but {len(frames) - 2} came")
    tensors = {}
    for entry, frame, size in zip(entries, frames[2:], sizes[2:], strict=True):
        name, dtype, shape = _entry(entry)
        width = 2 if dtype == _BFLOAT16 else _DTYPES[dtype].itemsize
        count = 1
        for length in shape:
            count *= length
        if count * width != size or name in tensors:
            raise Refused(f"tensor '{name}' is not as it is announced")
        if dtype == _BFLOAT16:
            tensors[name] = from_bfloat16(np.frombuffer(frame, np.uint16)).reshape(shape)
        else:
            tensors[name] = np.frombuffer(frame, _DTYPES[dtype].newbyteorder("<")).reshape(shape)
    return Message(kind, fields, tensors)


def _entry(entry: Any) -> tuple[str, str, list[int]]:
    right = (
        isinstance(entry, list)
        and len(entry) == 3
        and isinstance(entry[0], str)
        and 0 < len(entry[0]) <= 80
        and isinstance(entry[1], str)
        and (entry[1] in _DTYPES or entry[1] == _BFLOAT16)
        and isinstance(entry[2], list)
        and len(entry[2]) <= MOST_DIMENSIONS
        and all(type(length) is int and 0 <= length <= MOST_MESSAGE_BYTES for length in entry[2])
    )
    if not right:
        raise Refused("a tensor that no message has")
    return entry[0], entry[1], entry[2]


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Rounded to nearest, ties to even; NaN stays NaN. uint16, flat."""
    bits = np.ascontiguousarray(x, np.float32).reshape(-1).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(x).reshape(-1), np.uint16(0x7FC0), rounded)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)
