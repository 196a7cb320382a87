"""A connection over TCP that sends and receives whole messages of a session without blocking.

A peer that has not proved its key can send a handshake of fixed size and nothing else. Memory for a message is
allocated after its seal, which contains its size, has been verified.
"""

import socket
import time
from collections import deque
from itertools import islice

from weft_function.memory import empty
from weft_function.session import CHALLENGE_BYTES, SEAL_BYTES, Seal, Session, make_hello, make_join
from weft_function.wire import MAX_MESSAGE_BYTES, Message, Refused, size_of

HANDSHAKE_SECONDS = 5.0  # within which a peer must complete the handshake
SILENT_SECONDS = 15  # without an acknowledgement, after which a machine counts as lost
_FRAMES_AT_ONCE = 64


class Closed(ConnectionError):
    """The other side has closed the connection, or it was lost."""


class Connection:
    def __init__(
        self,
        sock: socket.socket,
        session: Session,
        as_bfloat16: bool = False,
        max_bytes: int = MAX_MESSAGE_BYTES,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        """`max_bytes`: the largest message that may be received now; can be changed later."""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _set_keepalive(sock, silent_seconds)
        self._sock, self._session, self._as_bfloat16, self.max_bytes = sock, session, as_bfloat16, max_bytes
        self._unsent: deque[memoryview] = deque()
        self._seal_buffer = memoryview(bytearray(SEAL_BYTES))
        self._sealed: Seal | None = None
        self._payload = empty(0)
        self._buffer, self._num_received = self._seal_buffer, 0

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether bytes are queued that could not be sent yet."""
        return bool(self._unsent)

    def send(self, message: Message) -> int:
        """Queues a message, sends as much as possible, and returns its size. Its tensors must not change afterwards."""
        frames = self._session.seal(message, self._as_bfloat16)
        self._unsent.extend(memoryview(frame).cast("B") for frame in frames)
        self.flush()
        return size_of(frames)

    def flush(self) -> None:
        while self._unsent:
            try:
                sent = self._sock.sendmsg(list(islice(self._unsent, _FRAMES_AT_ONCE)))
            except BlockingIOError:
                return
            except OSError as error:
                raise Closed(str(error)) from None
            while sent:
                first = self._unsent.popleft()
                if sent < len(first):
                    self._unsent.appendleft(first[sent:])
                    break
                sent -= len(first)

    def receive(self) -> Message | None:
        """The next message; None if not all of it has arrived. After Malformed the next one can still be received."""
        while True:
            while self._num_received < len(self._buffer):
                try:
                    count = self._sock.recv_into(self._buffer[self._num_received :])
                except BlockingIOError:
                    return None
                except OSError as error:
                    raise Closed(str(error)) from None
                if not count:
                    raise Closed("the other side closed the connection")
                self._num_received += count
            if self._sealed is None:
                self._sealed = self._session.read_seal(bytes(self._seal_buffer), self.max_bytes)
                self._payload = empty(self._sealed.payload_bytes)
                self._buffer, self._num_received = self._payload.data, 0
            else:
                seal, payload = self._sealed, self._payload
                self._expect_seal()
                return self._session.open(seal, payload)

    def close(self) -> None:
        self._sock.close()

    def _expect_seal(self) -> None:
        self._sealed = None
        self._payload = empty(0)  # the message alone keeps its bytes alive
        self._buffer, self._num_received = self._seal_buffer, 0


def connect(host: str, port: int, lease: str, key: bytes, silent_seconds: float = SILENT_SECONDS,
            seconds: float = HANDSHAKE_SECONDS) -> Connection:  # fmt: skip
    """Connects to a server and completes the handshake; raises OSError or Refused if that fails."""
    until = time.monotonic() + seconds
    sock = socket.create_connection((host, port), timeout=seconds)
    try:
        hello = make_hello(lease)
        sock.sendall(hello)
        challenge = _receive_exactly(sock, CHALLENGE_BYTES, until)
        join = make_join(key, hello, challenge)
        sock.sendall(join)
        session = Session(key, hello + challenge + join, "worker")
        return Connection(sock, session, silent_seconds=silent_seconds)
    except (OSError, Refused):
        sock.close()
        raise


def _receive_exactly(sock: socket.socket, size: int, until: float) -> bytes:
    found = b""
    while len(found) < size:
        sock.settimeout(max(0.001, until - time.monotonic()))
        more = sock.recv(size - len(found))
        if not more:
            raise Closed("the server closed the connection during the handshake")
        found += more
    return found


def _set_keepalive(sock: socket.socket, seconds: float) -> None:
    """The kernel checks that the other machine is alive, even while this process computes."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": seconds / 3, "TCP_KEEPINTVL": seconds / 3, "TCP_KEEPCNT": 2}
    options["TCP_USER_TIMEOUT"] = 1000 * seconds
    for name, value in options.items():
        if hasattr(socket, name):  # options differ between systems
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), max(1, int(value)))
