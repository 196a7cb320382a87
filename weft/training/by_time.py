"""Borders in time that cut edges into those for training, validation and testing, found by all workers together."""

import torch
from torch import Tensor

from weft.comm import Communicator
from weft.errors import UserError


def time_borders(times: Tensor, val: float, test: float, comm: Communicator, what: str) -> tuple[float, float]:
    """The last time of training, and of validation: of all workers' times, the newest are for testing, those before for
    validation. Equal times stay together, on the earlier side.

    times: float64, this worker's.
    """
    ordered = times.sort().values
    total = int(comm.all_reduce(torch.tensor([ordered.numel()]), "control", "edges with times"))
    if not total:
        return float("inf"), float("inf")
    first, last = (_at(ordered, round((1 - held) * total), comm) for held in (val + test, test))
    newest = _at(ordered, total, comm)
    if (val + test > 0) and first == newest:
        raise UserError(
            f"{what} cannot be held out by time, since too many are of the newest time: hold out more, or at random "
            "(hold_out=random)"
        )
    return first, last


def _at(ordered: Tensor, wanted: int, comm: Communicator) -> float:
    """The smallest time until which there are at least `wanted` over all workers, one at least. A search of 64 steps in
    the numbers that order float64 as their bits do."""
    wanted, low, high = max(1, wanted), _number(float("-inf")), _number(float("inf"))
    while low < high:
        middle = (low + high) // 2
        there = torch.searchsorted(ordered, torch.tensor(_time(middle), dtype=torch.float64), right=True).view(1)
        if int(comm.all_reduce(there, "control", "edges until a time")) >= wanted:
            high = middle
        else:
            low = middle + 1
    return _time(low)


def _number(time: float) -> int:
    bits = int(torch.tensor(time, dtype=torch.float64).view(torch.int64))
    return bits if bits >= 0 else -(bits & 0x7FFFFFFFFFFFFFFF)


def _time(number: int) -> float:
    bits = abs(number)
    size = float(torch.tensor(bits, dtype=torch.int64).view(torch.float64))
    return size if number >= 0 else -size
