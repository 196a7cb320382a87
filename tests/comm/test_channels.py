"""The measured speed of channels: known to all workers alike, from no larger messages than there will be."""

import torch

from tests.workers import run_workers
from weft.comm import Communicator, measure_channels
from weft.comm.channels import _alike

PROBES = 3 * 2 * 5 * 65_536 + 3 * 5 * 256  # bytes at most: to 3 peers, 5 times, small ones, and the first of the larger


def measured(comm: Communicator, largest: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    channels = measure_channels(comm, largest if comm.worker == 1 else 0)
    return channels.latency, channels.seconds_per_byte, comm.sent["control"]


def test_every_worker_knows_every_channel():
    answers = run_workers(measured, 4, 1 << 20)
    for latency, seconds_per_byte, _ in answers:
        assert torch.equal(latency, answers[0][0]) and torch.equal(seconds_per_byte, answers[0][1])
        others = ~torch.eye(4, dtype=torch.bool)
        assert bool((latency[others] > 0).all()) and bool((seconds_per_byte[others] > 0).all())


def test_small_messages_are_not_measured_with_large_ones():
    """One worker's largest message decides for all of them."""
    small, large = (run_workers(measured, 4, largest) for largest in (1000, 1 << 22))
    assert all(sent < PROBES for _, _, sent in small)
    assert all(sent > PROBES for _, _, sent in large)


def test_what_is_nearly_alike_counts_as_alike():
    found = torch.tensor([[0.0, 1.0, 1.3], [0.7, 0.0, 1.0], [9.0, 1.9, 0.0]], dtype=torch.float64)
    middle = 1.0  # the lower one of the two
    wanted = torch.tensor([[0, middle, middle], [middle, 0, middle], [9, middle, 0]], dtype=torch.float64)
    assert torch.equal(_alike(found, 0.0), wanted)
    assert torch.equal(_alike(found * 1e-4, jitter=1e-3), (wanted > 0).double() * 1e-4), (
        "nothing differs by a millisecond"
    )
