"""Where tensor tasks run, and how far intervals may run ahead of each other."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ExecutorConfig(BaseModel):
    """Who does the products."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["inline", "pool", "lambda", "ray"] = Field(
        "inline",
        description="this process, worker processes of a pool, a cloud's functions, or a Ray cluster's actors",
    )
    intervals: int | None = Field(
        None, ge=1, description="pieces of a server's vertices that go through an epoch by themselves; 16 unless set"
    )
    staleness: Literal["pipe"] | int = Field(
        "pipe",
        description="pipe: exact, every layer waits for the one before; 0, 1, ...: rows may be so many epochs older "
        "than the epoch before",
    )
    settle: float | None = Field(
        None, gt=0, description="go on as with pipe once ten epochs lower the loss by a smaller share than this"
    )
    workers: int = Field(2, ge=0, description="functions at the start, for each server; 0: others bring them (pool)")
    most_workers: int | None = Field(
        None, ge=1, description="functions at most: their number follows the queue; as at the start unless set"
    )
    placement: Literal["auto", "functions"] = Field(
        "auto", description="auto: a task that costs less than its way is done by the server itself"
    )
    wire: Literal["float32", "bfloat16"] = Field("float32", description="how numbers travel to functions and back")
    bind: str = Field(
        "tcp://127.0.0.1:*",
        description="where a server listens for its functions; the next one on a machine takes the next port",
    )
    advertise: str | None = Field(
        None, description="address under which functions reach the server, where it is not the one it listens at"
    )
    hedge: float = Field(0.05, ge=0, le=1, description="share of tasks that may be tried twice at once")
    function: str = Field("weft", description="name of the cloud's function (lambda)")
    endpoint: str | None = Field(None, description="address of the functions' service, where it is not AWS (lambda)")
    lease_seconds: float = Field(600.0, gt=0, description="how long one invocation works (lambda)")
    mode: Literal["lease", "task"] = Field(
        "lease", description="an invocation connects back and does many tasks, or brings one in its payload (lambda)"
    )
    prices: str | None = Field(None, description="price file; list prices of a dated one of ours unless set")
    delay_ms: float = Field(0.0, ge=0, description="waited by each function before it answers (experiments)")

    @property
    def pipelines(self) -> bool:
        """Whether a run goes in intervals; without, a pass is one product after another over all rows."""
        return self.name != "inline" or self.intervals is not None

    @property
    def bound(self) -> int | None:
        return None if self.staleness == "pipe" else self.staleness
