"""Decisions about settings that say `auto`: whether rows are spilled to files, and whether passes are restricted."""

from torch import nn

from weft.config import RunConfig
from weft.errors import UserError
from weft.layers import BatchNorm, Stack, traits_of

WORTH_RESTRICTING = 0.25  # of the rows that need not be computed: below it, the better order of rows is worth more


def spills(config: RunConfig, parts: int) -> bool:
    """Whether rows lie in files, with so many parts on each worker."""
    if config.memory.spill != "auto":
        return config.memory.spill == "always"
    return config.exchange.schedule == "sequential" and config.workers == 1 and parts > 1


def restricts(config: RunConfig, model: nn.Module) -> bool:
    """Whether a training pass leaves out rows that the loss does not depend on.

    Not with batch normalisation, whose statistics are of all rows. Layers of a user's own may relate rows in ways that
    weft does not know, so that they are restricted only by memory.restrict=always.
    """
    possible = isinstance(model, Stack) and not any(isinstance(module, BatchNorm) for module in model.modules())
    if config.memory.restrict == "always" and not possible:
        raise UserError(
            "memory.restrict=always leaves vertices out, but batch normalisation needs all of them, and a model of "
            "your own that is not a weft.layers.Stack has no layers to restrict: use memory.restrict=auto"
        )
    if config.memory.restrict == "auto" and isinstance(model, Stack):
        possible = possible and all(traits_of(layer).restrictable for layer in model.layers)
    return config.memory.restrict != "never" and possible
