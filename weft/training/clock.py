"""How long the phases of an epoch take."""

import time


class PhaseClock:
    """Seconds by phase, lap by lap from the moment it is made."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        """The time since the last lap goes to this phase."""
        now = time.perf_counter()
        self.laps[phase], self._last = self.laps.get(phase, 0.0) + now - self._last, now

    def move(self, to: str, phases: tuple[str, ...], seconds: tuple[float, ...]) -> None:
        """Takes seconds out of phases and gives them to another one."""
        for phase, share in zip(phases, seconds, strict=True):
            self.laps[phase] -= share
        self.laps[to] = self.laps.get(to, 0.0) + sum(seconds)

    def total(self) -> float:
        return self._last - self._start
