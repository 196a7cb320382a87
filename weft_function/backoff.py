"""Exponential backoff between attempts that fail."""

import time


class Backoff:
    """Pauses that double with each failure, up to a longest one, until an attempt succeeds."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first, self._longest = first_seconds, longest_seconds
        self._pause, self._blocked_until = first_seconds, 0.0

    def next_pause(self) -> float:
        """Seconds to wait before the next attempt; the pause after it is twice as long."""
        pause, self._pause = self._pause, min(self._longest, 2 * self._pause)
        return pause

    def block(self) -> None:
        """Records a failure: no further attempt may start before the next pause is over."""
        self._blocked_until = time.monotonic() + self.next_pause()

    def reset(self) -> None:
        """Records a success: the pause after the next failure is the first one again."""
        self._pause = self._first

    @property
    def blocked_seconds(self) -> float:
        """Seconds until an attempt may start; 0: it may start now."""
        return max(0.0, self._blocked_until - time.monotonic())
