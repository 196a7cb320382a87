"""The settings of the executor: where tensor tasks run, and the staleness bound of intervals."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ExecutorConfig(BaseModel):
    """Where tensor tasks run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["inline", "pool", "lambda", "ray"] = Field(
        "inline",
        description="this process, worker processes of a pool, cloud functions, or actors of a Ray cluster",
    )
    intervals: int | None = Field(
        None,
        ge=1,
        description="vertex intervals of each server, which go through an epoch independently; 16 unless set",
    )
    staleness: Literal["pipe"] | int = Field(
        "pipe",
        description="pipe: exact, every layer waits for the one before; 0 or more: some rows are of the epoch before, "
        "which hides the latency of functions (a larger bound allows the same)",
    )
    plateau: float | None = Field(
        None, gt=0, description="continue as with pipe once ten epochs lower the loss by a smaller share than this"
    )
    workers: int = Field(
        2, ge=0, description="functions of each server at the start; 0: they are started elsewhere (pool)"
    )
    most_workers: int | None = Field(
        None,
        ge=1,
        description="largest number of functions, which then follows the queue of tasks; as at the start unless set",
    )
    placement: Literal["auto", "functions"] = Field(
        "auto", description="auto: the server itself runs tasks that take less time than sending them"
    )
    wire: Literal["float32", "bfloat16"] = Field(
        "float32", description="type of the numbers in messages to and from functions"
    )
    bind: str = Field(
        "tcp://127.0.0.1:*",
        description="address at which a server listens for functions; the next server on a machine takes the next port",
    )
    advertise: str | None = Field(
        None, description="address at which functions reach the server, if it is not the one at which it listens"
    )
    hedge: float = Field(
        0.05, ge=0, le=1, description="largest share of tasks that may have a second attempt at the same time"
    )
    function: str = Field("weft", description="name of the cloud function (lambda)")
    endpoint: str | None = Field(None, description="address of the Lambda service, if it is not AWS (lambda)")
    lease_seconds: float = Field(600.0, gt=0, description="duration of one invocation (lambda)")
    mode: Literal["lease", "task"] = Field(
        "lease", description="an invocation connects back and runs many tasks, or has one in its payload (lambda)"
    )
    prices: str | None = Field(
        None, description="price file; unless set, a dated file of list prices that comes with weft"
    )
    delay_ms: float = Field(0.0, ge=0, description="delay of each response by functions (experiments)")

    @property
    def pipelines(self) -> bool:
        """Whether the run is divided into intervals; otherwise each pass is over the whole graph."""
        return self.name != "inline" or self.intervals is not None

    @property
    def bound(self) -> int | None:
        """The staleness bound; None: every epoch is exact."""
        return None if self.staleness == "pipe" else self.staleness
