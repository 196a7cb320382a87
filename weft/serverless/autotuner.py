"""Chooses the number of workers from the queue of tasks."""

PATIENCE = 3  # more observations of one kind than of the other before the number changes


class Autotuner:
    """Adds workers while the queue is long or growing, and removes one while workers are idle."""

    def __init__(self, min_workers: int, max_workers: int, patience: int = PATIENCE) -> None:
        self.workers, self._min, self._max, self._patience = min_workers, min_workers, max_workers, patience
        self._previous_queue = self._score = 0

    def observe(self, num_queued: int, num_running: int) -> int:
        """Takes queued tasks and running attempts into account; returns the number of workers that there should be."""
        if num_queued > 2 * self.workers or num_queued > self._previous_queue:
            self._score += 1
        elif not num_queued and num_running < self.workers:
            self._score -= 1
        self._previous_queue = num_queued
        if self._score >= self._patience:
            self.workers, self._score = min(self._max, self.workers + max(1, self.workers // 4)), 0
        elif self._score <= -self._patience:
            self.workers, self._score = max(self._min, self.workers - 1), 0
        return self.workers
