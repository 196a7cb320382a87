"""Leases: a name for each worker's connection, and a key that is valid until the lease expires or is revoked."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from weft_function.session import derive_key, new_lease, shared_lease_key


@dataclass
class _Lease:
    key: bytes
    expires: float | None  # monotonic; None: never
    registered: bool = False  # whether its worker has registered


class Leases:
    """The leases that one server has issued. With a shared key, workers can also name their own leases."""

    def __init__(self, key: bytes, server: str, shared: bool) -> None:
        self._key, self._server, self._shared = key, server, shared
        self._issued: dict[str, _Lease] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._issued))

    def issue(self, seconds: float | None = None) -> tuple[str, bytes]:
        """A new lease and its key, which expires after `seconds`."""
        lease = new_lease()
        key = derive_key(self._key, f"lease {lease} of {self._server}")
        self._issued[lease] = _Lease(key, None if seconds is None else time.monotonic() + seconds)
        return lease, key

    def key_of(self, lease: str) -> bytes | None:
        """The key of a lease; None if the lease is not valid."""
        if lease in self._issued:
            return self._issued[lease].key
        return shared_lease_key(self._key, lease) if self._shared else None

    def record_registration(self, lease: str) -> None:
        if lease in self._issued:
            self._issued[lease].registered = True

    def has_registered(self, lease: str) -> bool:
        return lease in self._issued and self._issued[lease].registered

    def revoke(self, lease: str) -> None:
        self._issued.pop(lease, None)

    def expired(self, now: float) -> list[str]:
        return [name for name, lease in self._issued.items() if lease.expires is not None and lease.expires <= now]

    def expiries(self) -> list[float]:
        """The times at which leases expire."""
        return [lease.expires for lease in self._issued.values() if lease.expires is not None]
