"""Exactly once: which tasks are done, which updates are in the weights, and which versions somebody still needs."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from weft_function.request import TaskId


class Ledger:
    """Tasks and updates that have been counted. Whoever comes second is turned away, however late.

    What is kept does not grow with the run: of epochs that are closed, everything counts as done.
    """

    def __init__(self, closed_epoch: int = 0) -> None:
        self._closed = closed_epoch
        self._running: set[TaskId] = set()
        self._done: set[TaskId] = set()
        self._updates: set[tuple[int, int]] = set()  # epoch, server
        self.turned_away = 0

    def begin(self, task: TaskId) -> None:
        assert task.epoch > self._closed and task not in self._done and task not in self._running
        self._running.add(task)

    def finish(self, task: TaskId) -> bool:
        """Whether this is the first answer of a task that was begun; only then may it be used."""
        if task not in self._running:
            self.turned_away += 1
            return False
        self._running.remove(task)
        self._done.add(task)
        return True

    def apply(self, epoch: int, server: int) -> bool:
        """Whether a server's share in an update has not been counted before."""
        key = (epoch, server)
        if epoch <= self._closed or key in self._updates:
            self.turned_away += 1
            return False
        self._updates.add(key)
        return True

    def close(self, epoch: int) -> None:
        """All tasks and updates up to this epoch are done."""
        assert not any(task.epoch <= epoch for task in self._running), "an epoch was closed while a task of it ran"
        self._closed = max(self._closed, epoch)
        self._done = {task for task in self._done if task.epoch > epoch}
        self._updates = {key for key in self._updates if key[0] > epoch}

    def state(self) -> dict[str, int]:
        """For a checkpoint. Shares in an update that the weights do not hold yet are given again after a restart."""
        return {"closed": self._closed}


class Stash:
    """Versions of the weights: an interval's backward pass uses the version that its forward pass used."""

    def __init__(self, weights: Mapping[str, np.ndarray], version: int = 0) -> None:
        self._versions: dict[int, dict[str, np.ndarray]] = {version: _frozen(weights)}
        self._held: Counter[int] = Counter()
        self.newest = version

    def add(self, version: int, weights: Mapping[str, np.ndarray]) -> None:
        assert version > self.newest
        self._versions[version] = _frozen(weights)
        before, self.newest = self.newest, version
        self._drop(before)

    def hold(self) -> int:
        """The newest version, which stays until it is let go of as often as it was held."""
        self._held[self.newest] += 1
        return self.newest

    def let_go(self, version: int) -> None:
        assert self._held[version] > 0
        self._held[version] -= 1
        self._drop(version)

    def get(self, version: int) -> Mapping[str, np.ndarray]:
        return self._versions[version]

    @property
    def num_versions(self) -> int:
        return len(self._versions)

    def _drop(self, version: int) -> None:
        if version != self.newest and not self._held[version]:
            self._versions.pop(version, None)
            self._held.pop(version, None)


def _frozen(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    copies = {name: np.array(weight) for name, weight in weights.items()}
    for copy in copies.values():
        copy.setflags(write=False)
    return copies
