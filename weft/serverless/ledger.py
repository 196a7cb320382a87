"""Exactly once: which tasks have a response, and whose gradients an update already contains."""

from weft_function.task import TaskId


class Ledger:
    """Accepts the first response of each task and the first gradients of each server and epoch; rejects all others.

    Its size does not grow with the run: in a closed epoch everything counts as done.
    """

    def __init__(self, closed_epoch: int = 0) -> None:
        self._closed = closed_epoch
        self._running: set[TaskId] = set()
        self._done: set[TaskId] = set()
        self._updates: set[tuple[int, int]] = set()  # epoch, server
        self.num_rejected = 0

    def begin(self, task: TaskId) -> None:
        assert task.epoch > self._closed and task not in self._done and task not in self._running
        self._running.add(task)

    def accept_response(self, task: TaskId) -> bool:
        """Whether this is the first response of a task that has begun; only then may it be used."""
        if task not in self._running:
            self.num_rejected += 1
            return False
        self._running.remove(task)
        self._done.add(task)
        return True

    def accept_gradients(self, epoch: int, server: int) -> bool:
        """Whether these are the first gradients of a server for an epoch's update; only then may they be used."""
        key = (epoch, server)
        if epoch <= self._closed or key in self._updates:
            self.num_rejected += 1
            return False
        self._updates.add(key)
        return True

    def close_epoch(self, epoch: int) -> None:
        """All tasks and updates up to this epoch are done."""
        assert not any(task.epoch <= epoch for task in self._running), "an epoch was closed while a task of it ran"
        self._closed = max(self._closed, epoch)
        self._done = {task for task in self._done if task.epoch > epoch}
        self._updates = {key for key in self._updates if key[0] > epoch}

    def state(self) -> dict[str, int]:
        """For a checkpoint. Gradients of an update that is not complete are computed again after a restart."""
        return {"closed": self._closed}
