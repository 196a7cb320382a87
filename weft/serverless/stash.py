"""Weight stashing: the backward pass of an interval uses the weight version that its forward pass used."""

from collections import Counter
from collections.abc import Mapping

import numpy as np


class WeightStash:
    """Keeps the newest version of the weights, and older versions while an interval uses them."""

    def __init__(self, weights: Mapping[str, np.ndarray], version: int = 0) -> None:
        self._versions: dict[int, dict[str, np.ndarray]] = {version: _read_only_copies(weights)}
        self._users: Counter[int] = Counter()
        self.newest = version

    def add(self, version: int, weights: Mapping[str, np.ndarray]) -> None:
        assert version > self.newest
        self._versions[version] = _read_only_copies(weights)
        previous, self.newest = self.newest, version
        self._drop_unused(previous)

    def acquire(self) -> int:
        """The newest version, which is kept until `release` has been called as often as `acquire`."""
        self._users[self.newest] += 1
        return self.newest

    def release(self, version: int) -> None:
        assert self._users[version] > 0
        self._users[version] -= 1
        self._drop_unused(version)

    def get(self, version: int) -> Mapping[str, np.ndarray]:
        return self._versions[version]

    @property
    def num_versions(self) -> int:
        return len(self._versions)

    def _drop_unused(self, version: int) -> None:
        if version != self.newest and not self._users[version]:
            self._versions.pop(version, None)
            self._users.pop(version, None)


def _read_only_copies(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    copies = {name: np.array(weight) for name, weight in weights.items()}
    for copy in copies.values():
        copy.setflags(write=False)
    return copies
