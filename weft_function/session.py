"""Authenticated sessions: a handshake that proves both sides' key, and sealed messages after it.

    worker -> server   hello       lease, nonce
    server -> worker   challenge   server, nonce, proof of the key
    worker -> server   join        proof of the key

Both nonces are random, and the keys that seal all later messages are derived from the whole handshake. A message that
was recorded in one session is therefore refused in every other session, at every other server, and by its own sender.
Messages are numbered in each direction, so that none can be dropped, repeated or reordered. No clock is involved: that
a message is fresh follows from the nonces.
"""

import hashlib
import hmac
import secrets
import struct
from typing import Literal, NamedTuple

import numpy as np

from weft_function.memory import empty
from weft_function.wire import (
    MAX_HEADER_BYTES,
    MAX_MESSAGE_BYTES,
    Frame,
    Message,
    Refused,
    pack,
    size_of,
    unpack,
)

VERSION = 2
KEY_BYTES = 32
LEASE_BYTES = 16  # of a lease's name
SERVER_BYTES = 16  # of a server's random name

Side = Literal["worker", "server"]

_MAGIC = b"WFT" + bytes([VERSION])
_NONCE_BYTES = _MAC_BYTES = _DIGEST_BYTES = 32
_HELLO = struct.Struct(f"<4s{LEASE_BYTES}s{_NONCE_BYTES}s")
_CHALLENGE = struct.Struct(f"<4s{SERVER_BYTES}s{_NONCE_BYTES}s")
_SEAL = struct.Struct(f"<4sQIQ{_DIGEST_BYTES}s")  # magic, number, header bytes, all bytes, digest
HELLO_BYTES = _HELLO.size
CHALLENGE_BYTES = _CHALLENGE.size + _MAC_BYTES
JOIN_BYTES = len(_MAGIC) + _MAC_BYTES
SEAL_BYTES = _SEAL.size + _MAC_BYTES


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def new_lease() -> str:
    return secrets.token_hex(LEASE_BYTES // 2)


def derive_key(key: bytes, purpose: str) -> bytes:
    """A separate key for each purpose."""
    return hmac.digest(key, purpose.encode(), "sha256")


def shared_lease_key(shared_key: bytes, lease: str) -> bytes:
    """The key of a lease that a worker names itself, because it was started by hand and has the shared key."""
    return derive_key(shared_key, f"lease {lease}")


# -- the handshake -----------------------------------------------------------------------------------------------------


def make_hello(lease: str) -> bytes:
    return _HELLO.pack(_MAGIC, lease.encode("ascii"), secrets.token_bytes(_NONCE_BYTES))


def lease_of(hello: bytes) -> str:
    magic, lease, _ = _HELLO.unpack(hello)
    if magic != _MAGIC:
        raise Refused("the handshake is of another version")
    try:
        return str(lease.decode("ascii"))
    except UnicodeDecodeError:
        raise Refused("the name of the lease is not valid") from None


def make_challenge(key: bytes, hello: bytes, server: bytes) -> bytes:
    """`server`: the random name of this server."""
    challenge = _CHALLENGE.pack(_MAGIC, server, secrets.token_bytes(_NONCE_BYTES))
    return challenge + _proof(key, "challenge", hello + challenge)


def make_join(key: bytes, hello: bytes, challenge: bytes) -> bytes:
    """The worker's proof of the key; raises Refused unless the challenge proves the server's."""
    if challenge[:4] != _MAGIC:
        raise Refused("the server is of another version")
    body, proof = challenge[: _CHALLENGE.size], challenge[_CHALLENGE.size :]
    if not hmac.compare_digest(proof, _proof(key, "challenge", hello + body)):
        raise Refused("the server has another key")
    return _MAGIC + _proof(key, "join", hello + challenge)


def check_join(key: bytes, hello: bytes, challenge: bytes, join: bytes) -> None:
    if not hmac.compare_digest(join, _MAGIC + _proof(key, "join", hello + challenge)):
        raise Refused("the worker has another key")


def _proof(key: bytes, purpose: str, transcript: bytes) -> bytes:
    return hmac.digest(derive_key(key, purpose), transcript, "sha256")


# -- sealed messages --------------------------------------------------------------------------------------------------


class Seal(NamedTuple):
    """The verified seal of a message that has not been received yet."""

    header_bytes: int
    payload_bytes: int
    digest: bytes


class Session:
    """One side of a session: seals outgoing messages and opens incoming ones in their order."""

    def __init__(self, key: bytes, transcript: bytes, side: Side) -> None:
        """`transcript`: all bytes of the handshake, which are the same on both sides."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        session = derive_key(key, "session") + hashlib.sha256(transcript).digest()
        keys = {
            sender: hmac.digest(session, f"from the {sender}".encode(), "sha256") for sender in ("worker", "server")
        }
        self._sealing_key, self._opening_key = keys[side], keys["server" if side == "worker" else "worker"]
        self._num_sealed = self._num_opened = 0

    def seal(self, message: Message, as_bfloat16: bool = False) -> list[Frame]:
        """The frames to send: the seal, the header, the tensors."""
        frames = pack(message, as_bfloat16)
        digest = hashlib.sha256()
        for frame in frames:
            digest.update(frame)
        seal = _SEAL.pack(_MAGIC, self._num_sealed, len(frames[0]), size_of(frames), digest.digest())
        self._num_sealed += 1
        return [seal + hmac.digest(self._sealing_key, seal, "sha256"), *frames]

    def read_seal(self, sealed: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> Seal:
        """Verifies a seal, so that nothing is allocated for a message that is not the next one or is too large."""
        body, mac = sealed[: _SEAL.size], sealed[_SEAL.size :]
        if not hmac.compare_digest(mac, hmac.digest(self._opening_key, body, "sha256")):
            raise Refused("the seal was not made by the other side in this session")
        magic, number, header_bytes, payload_bytes, digest = _SEAL.unpack(body)
        if magic != _MAGIC or number != self._num_opened:
            raise Refused(f"message {number} was received where message {self._num_opened} was expected")
        if not 0 < header_bytes <= min(MAX_HEADER_BYTES, payload_bytes) or payload_bytes > max_bytes:
            raise Refused(f"a message of {payload_bytes} bytes exceeds the limit of {max_bytes} bytes")
        return Seal(header_bytes, payload_bytes, digest)

    def open(self, seal: Seal, payload: np.ndarray) -> Message:
        """The sealed message. Raises Malformed if it is authentic, but not well formed; the next one can be read."""
        if not hmac.compare_digest(seal.digest, hashlib.sha256(payload.data).digest()):
            raise Refused("the message does not match its seal")
        self._num_opened += 1
        return unpack(payload, seal.header_bytes)

    def open_all(self, frames: bytes) -> Message:
        """Opens a message that was received as a whole."""
        if len(frames) < SEAL_BYTES:
            raise Refused("the message has no seal")
        seal = self.read_seal(frames[:SEAL_BYTES])
        if len(frames) - SEAL_BYTES != seal.payload_bytes:
            raise Refused("the message does not match its seal")
        payload = empty(seal.payload_bytes)
        payload[:] = np.frombuffer(frames, np.uint8, offset=SEAL_BYTES)
        return self.open(seal, payload)
