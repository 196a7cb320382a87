"""Identifies the process at the other end of a connection on this machine, from what the kernel reports."""

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

Address = tuple[str, int]  # IPv4


def owns_connection(pid: int, peer: Address, here: Address) -> bool:
    """Whether process `pid` owns the end at `peer` of the connection between `peer` and `here`.

    /proc lists the socket of each connection, and the sockets that each process has open.
    """
    socket_id = _socket_id(peer, here)
    if socket_id is None:
        return False
    with suppress(OSError):  # the process has ended
        for descriptor in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # it was closed meanwhile
                if os.readlink(descriptor.path) == f"socket:[{socket_id}]":
                    return True
    return False


def _socket_id(local: Address, remote: Address) -> str | None:
    ends = [_kernel_format(*local), _kernel_format(*remote)]
    with suppress(OSError):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            found = line.split()
            if found[1:3] == ends:
                return found[9]
    return None


def _kernel_format(host: str, port: int) -> str:
    return f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}"
