"""Who goes through epochs where the training loop does not do so itself."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor


class EpochRunner(Protocol):
    """Goes through epochs in the place of the training loop, as a pipeline of intervals does."""

    def start(
        self, optimiser: torch.optim.Optimizer, epoch: int, notes: Mapping[str, Any], state: Mapping[str, Tensor]
    ) -> None:
        """Begins after this epoch, with the `notes` and the `state` that a checkpoint of it holds."""
        ...

    def epoch(self, epoch: int) -> dict[str, Any]:
        """Goes on until the weights hold this epoch's update; its record, alike on every worker."""
        ...

    def before_checkpoint(self) -> dict[str, Any]:
        """Makes weights and optimiser whole on every worker; what to note in the checkpoint's manifest."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What this worker goes on with after the last epoch, beside weights and optimiser."""
        ...

    def close(self) -> None:
        """Ends whatever it started, also where training failed."""
        ...
