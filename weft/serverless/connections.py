"""One thread that owns all authenticated connections of a process: it receives, dispatches and sends messages.

A message is received into memory that is allocated after its seal was verified; a connection has room for one message,
whose size `Connection.max_bytes` limits.

An error in the thread ends the thread. `_shut_down` then fails everything that waits for it, and `post` raises.
"""

import selectors
import socket
import threading
import traceback
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any

from weft.serverless.listener import Listener
from weft_function.connection import SILENT_SECONDS, Closed, Connection
from weft_function.session import Session
from weft_function.wire import Malformed, Message, Refused

CLOSE_SECONDS = 30.0  # until the thread must have ended


class Connections:
    """Subclasses decide who may connect (`_lease_key`) and handle messages (`_on_message`)."""

    name = "connections"

    def __init__(self, bind: str, as_bfloat16: bool = False, silent_seconds: float = SILENT_SECONDS) -> None:
        self._as_bfloat16, self._silent = as_bfloat16, silent_seconds
        self._selector = selectors.DefaultSelector()
        self._listener = Listener(bind, self._selector, self._lease_key, self._authenticated, self._count_refused)
        self.address = self._listener.address
        self._wakeup, self._woken = socket.socketpair()
        for sock in (self._wakeup, self._woken):
            sock.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain)
        self._connected: dict[str, Connection] = {}  # by lease
        self._inbox: deque[Any] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._ended: str | None = None  # why the thread accepts no more items
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    # -- called from other threads --------------------------------------------------------------------------------

    def post(self, item: Any) -> None:
        """Gives the thread an item, which `_on_item` handles; items are handled in their order."""
        with self._lock:
            if self._ended is not None:
                raise RuntimeError(self._ended)
            self._inbox.append(item)
        self._wake()

    def close(self) -> None:
        """Ends the thread and closes its connections."""
        self._closed = True
        self._wake()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            raise RuntimeError(f"the thread of the {self.name} did not end in {CLOSE_SECONDS:g} s")

    def _wake(self) -> None:
        with suppress(OSError):  # the thread has been woken already, or has ended
            self._wakeup.send(b"\0")

    # -- overridden by subclasses, called in the thread -----------------------------------------------------------

    def _lease_key(self, lease: str) -> bytes | None:
        """The key of a lease; None if there is no such lease."""
        raise NotImplementedError

    def _on_connected(self, lease: str) -> None:
        """A peer has proved the key of a lease."""

    def _on_message(self, lease: str, message: Message) -> None:
        """Handles a message; raises Malformed if it is not valid."""
        raise NotImplementedError

    def _on_malformed(self, lease: str, error: Malformed) -> None:
        """A message was authentic, but not well formed or not valid."""

    def _on_disconnected(self, lease: str, reason: str) -> None:
        """A connection was lost or closed."""

    def _on_item(self, item: Any) -> None:
        """Handles an item that was posted."""
        raise NotImplementedError

    def _on_wakeup(self) -> None:
        """Called after every wait."""

    def _timeout_seconds(self) -> float | None:
        """The longest time to wait for events; None: no limit."""
        return None

    def _count_refused(self) -> None:
        """Counts a message or a handshake that was refused."""

    def _shut_down(self, reason: str, failed: bool) -> None:
        """Fails everything that waits for the thread, which ends for this reason."""

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        reason = f"the {self.name} was closed"
        try:
            while not self._closed:
                self._poll()
            while self._inbox:
                self._on_item(self._inbox.popleft())
        except BaseException as error:  # reported to everything that waits for this thread, so that nothing hangs
            traceback.print_exception(error)
            reason = f"the thread of the {self.name} has ended: {type(error).__name__}: {error}"
        with self._lock:
            self._ended = reason
        try:
            self._shut_down(reason, failed=not self._closed)
        finally:
            self._release()

    def _poll(self, max_seconds: float | None = None) -> None:
        """Waits for events once, and handles them."""
        for key, mask in self._selector.select(self._wait_seconds(max_seconds)):
            key.data(mask)
        while self._inbox:
            self._on_item(self._inbox.popleft())
        self._on_wakeup()
        self._listener.check()

    def _wait_seconds(self, max_seconds: float | None) -> float | None:
        limits = [max_seconds, self._timeout_seconds(), *self._listener.timeouts()]
        times = [limit for limit in limits if limit is not None]
        return max(0.0, min(times)) if times else None

    def _drain(self, mask: int) -> None:
        self._woken.recv(4096)

    def _release(self) -> None:
        self._listener.close_handshakes()
        for lease in list(self._connected):
            self._remove(lease)
        self._selector.close()
        self._listener.close()
        for sock in (self._woken, self._wakeup):
            sock.close()

    # -- connections ------------------------------------------------------------------------------------------------

    def _authenticated(self, lease: str, sock: socket.socket, session: Session) -> None:
        self._add(lease, Connection(sock, session, self._as_bfloat16, silent_seconds=self._silent))

    def _add(self, lease: str, connection: Connection) -> None:
        if lease in self._connected:
            self._disconnect(lease, "the worker has connected again")
        self._connected[lease] = connection
        self._selector.register(connection, selectors.EVENT_READ, partial(self._ready, lease, connection))
        self._on_connected(lease)

    def _ready(self, lease: str, connection: Connection, mask: int) -> None:
        if self._connected.get(lease) is not connection:
            return
        try:
            if mask & selectors.EVENT_WRITE:
                connection.flush()
                self._select_events(connection)
            if mask & selectors.EVENT_READ:
                message = connection.receive()
                if message is not None:
                    self._on_message(lease, message)
        except Malformed as error:
            self._count_refused()
            self._on_malformed(lease, error)
        except Refused as error:
            self._count_refused()
            self._disconnect(lease, f"a message was refused ({error})")
        except Closed as error:
            self._disconnect(lease, str(error))

    def _send(self, lease: str, message: Message) -> int | None:
        """The bytes of the message; None if the peer is not connected."""
        connection = self._connected.get(lease)
        if connection is None:
            return None
        try:
            size = connection.send(message)
            self._select_events(connection)
        except Closed as error:
            self._disconnect(lease, str(error))
            return None
        return size

    def _select_events(self, connection: Connection) -> None:
        """Selects for writing exactly while the connection has unsent bytes."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.has_unsent else 0)
        key = self._selector.get_key(connection)
        if key.events != events:
            self._selector.modify(connection, events, key.data)

    def _disconnect(self, lease: str, reason: str) -> None:
        if self._remove(lease):
            self._on_disconnected(lease, reason)

    def _remove(self, lease: str) -> bool:
        connection = self._connected.pop(lease, None)
        if connection is None:
            return False
        self._selector.unregister(connection)
        connection.close()
        return True
