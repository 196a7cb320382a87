"""Accepts connections and authenticates them; limits what unauthenticated peers can cost.

A peer can send a handshake of fixed size within HANDSHAKE_SECONDS and nothing else. At most MAX_HANDSHAKES are in
progress at a time: if there are more, the oldest one from the host with the most of them is closed.
"""

import errno
import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from weft.errors import UserError
from weft_function.address import parse_address
from weft_function.connection import HANDSHAKE_SECONDS
from weft_function.session import (
    HELLO_BYTES,
    JOIN_BYTES,
    SERVER_BYTES,
    Session,
    check_join,
    lease_of,
    make_challenge,
)
from weft_function.wire import Refused

MAX_HANDSHAKES = 64
ACCEPTS_AT_ONCE = 16
BACKLOG = 128
PAUSE_SECONDS = 0.5  # without accepting, after the process has run out of descriptors or memory
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass
class Handshake:
    """A connection that is not authenticated yet, and what has been received on it."""

    sock: socket.socket
    host: str
    since: float
    received: bytearray = field(default_factory=bytearray)
    key: bytes = b""
    hello: bytes = b""
    challenge: bytes = b""


class Listener:
    """Runs in the thread of the selector that it is given."""

    def __init__(
        self,
        bind: str,
        selector: selectors.BaseSelector,
        lease_key: Callable[[str], bytes | None],
        on_authenticated: Callable[[str, socket.socket, Session], None],
        on_refused: Callable[[], None],
    ) -> None:
        """`lease_key`: the key of a lease, None for an unknown lease."""
        self._selector, self._lease_key = selector, lease_key
        self._on_authenticated, self._on_refused = on_authenticated, on_refused
        self._sock = _listen(bind)
        self._sock.setblocking(False)
        host, port = self._sock.getsockname()[:2]
        self.address = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        self._server_name = os.urandom(SERVER_BYTES)  # unique, also after a restart
        self._accepting, self._paused_until = False, 0.0
        self.handshakes: dict[int, Handshake] = {}  # by descriptor, oldest first

    def check(self) -> None:
        """Closes handshakes that have timed out, and accepts again after a pause."""
        now = time.monotonic()
        for handshake in [one for one in self.handshakes.values() if one.since + HANDSHAKE_SECONDS <= now]:
            self._on_refused()
            self._close(handshake)
        if not self._accepting and now >= self._paused_until:
            self._selector.register(self._sock, selectors.EVENT_READ, self._accept)
            self._accepting = True

    def timeouts(self) -> list[float]:
        """The seconds after which `check` has something to do."""
        now, found = time.monotonic(), []
        if self.handshakes:
            found.append(next(iter(self.handshakes.values())).since + HANDSHAKE_SECONDS - now)
        if not self._accepting:
            found.append(self._paused_until - now)
        return found

    def close_handshakes(self) -> None:
        for handshake in list(self.handshakes.values()):
            self._close(handshake)

    def close(self) -> None:
        self._sock.close()

    def _accept(self, mask: int) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    continue  # the peer disconnected before it was accepted
                self._selector.unregister(self._sock)
                self._accepting, self._paused_until = False, time.monotonic() + PAUSE_SECONDS
                return
            sock.setblocking(False)
            if len(self.handshakes) >= MAX_HANDSHAKES:
                self._on_refused()
                self._close(self._victim())
            handshake = Handshake(sock, str(address[0]), time.monotonic())
            self.handshakes[sock.fileno()] = handshake
            self._selector.register(sock, selectors.EVENT_READ, partial(self._receive, handshake))

    def _victim(self) -> Handshake:
        """The oldest handshake from the host that has the most of them, so that other hosts keep theirs."""
        hosts = Counter(handshake.host for handshake in self.handshakes.values())
        (host, _), *_ = hosts.most_common(1)
        return next(handshake for handshake in self.handshakes.values() if handshake.host == host)

    def _close(self, handshake: Handshake) -> None:
        self._forget(handshake)
        handshake.sock.close()

    def _forget(self, handshake: Handshake) -> None:
        if self.handshakes.pop(handshake.sock.fileno(), None) is not None:
            self._selector.unregister(handshake.sock)

    def _receive(self, handshake: Handshake, mask: int) -> None:
        """Receives the next part of a handshake: first the hello, then the join."""
        if self.handshakes.get(handshake.sock.fileno()) is not handshake:
            return  # closed since the selector returned
        try:
            size = JOIN_BYTES if handshake.hello else HELLO_BYTES
            data = handshake.sock.recv(size - len(handshake.received))  # never more than the part's size
            handshake.received += data
            if not data:
                self._close(handshake)
            elif len(handshake.received) == size:
                self._respond(handshake, bytes(handshake.received))
                handshake.received.clear()
        except BlockingIOError:
            return
        except (OSError, Refused) as error:
            if isinstance(error, Refused):
                self._on_refused()
            self._close(handshake)

    def _respond(self, handshake: Handshake, part: bytes) -> None:
        if not handshake.hello:
            key = self._lease_key(lease_of(part))
            if key is None:
                raise Refused("the lease is not known")
            handshake.key, handshake.hello = key, part
            handshake.challenge = make_challenge(key, part, self._server_name)
            handshake.sock.send(handshake.challenge)  # fits into the buffer of a new connection
            return
        check_join(handshake.key, handshake.hello, handshake.challenge, part)
        self._forget(handshake)
        session = Session(handshake.key, handshake.hello + handshake.challenge + part, "server")
        self._on_authenticated(lease_of(handshake.hello), handshake.sock, session)


def _listen(bind: str) -> socket.socket:
    """A socket that listens at tcp://HOST:PORT; host * is any address of this machine, port * is any free port."""
    refusal: Callable[[object], UserError] = lambda why: UserError(  # noqa: E731
        f"executor.bind={bind} cannot be listened at ({why}): give another address, tcp://HOST:PORT, or port * for any"
    )
    text = bind.replace("tcp://*:", "tcp://0.0.0.0:")
    try:
        host, port = parse_address(text[:-1] + "0" if text.endswith(":*") else text)
    except ValueError as error:
        raise refusal(error) from None
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise refusal(error) from None
