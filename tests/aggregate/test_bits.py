"""How many bits each row gets: against exhaustive search, and what must not matter."""

import itertools

import pytest
import torch

from weft.aggregate.bits import ERROR, Channel, assign
from weft.kernels import packed_bytes


def draw_channels(seed: int, count: int = 2, most_rows: int = 4) -> tuple[list[Channel], float]:
    draw = torch.Generator().manual_seed(seed)
    columns = int(torch.randint(3, 300, (1,), generator=draw))
    channels = []
    for _ in range(count):
        rows = int(torch.randint(0, most_rows + 1, (1,), generator=draw))
        weights = torch.rand(rows, generator=draw, dtype=torch.float64) ** 3
        latency, rate = (torch.rand(2, generator=draw) * torch.tensor([1e-4, 1e-6])).tolist()
        channels.append(Channel(weights, columns, latency, rate + 1e-8))
    return channels, float(torch.rand(1, generator=draw))


def objective(channels: list[Channel], fidelity: float, bits: list[list[int]]) -> float:
    """Written out once more, row by row."""

    def seconds(chosen: list[list[int]]) -> float:
        times = [
            c.latency + c.seconds_per_byte * sum(packed_bytes(c.columns, b) for b in row)
            for c, row in zip(channels, chosen, strict=True)
            if row
        ]
        return max(times, default=0.0)

    def variance(chosen: list[list[int]]) -> float:
        return sum(
            float(w) * ERROR[b]
            for c, row in zip(channels, chosen, strict=True)
            for w, b in zip(c.weights, row, strict=True)
        )

    low, high = ([[b] * c.weights.numel() for c in channels] for b in (2, 8))
    spread = variance(low) - variance(high)
    span = seconds(high) - seconds(low)
    return fidelity * ((variance(bits) - variance(high)) / spread if spread else 0) + (1 - fidelity) * (
        (seconds(bits) - seconds(low)) / span if span else 0
    )


@pytest.mark.parametrize("seed", range(40))
def test_as_good_as_exhaustive_search(seed):
    channels, fidelity = draw_channels(seed)
    sizes = [c.weights.numel() for c in channels]
    found = [bits.tolist() for bits in assign([channels], fidelity)[0]]
    assert [len(bits) for bits in found] == sizes

    def split(flat: tuple[int, ...]) -> list[list[int]]:
        rest = iter(flat)
        return [[next(rest) for _ in range(size)] for size in sizes]

    best = min(objective(channels, fidelity, split(flat)) for flat in itertools.product((2, 4, 8), repeat=sum(sizes)))
    assert objective(channels, fidelity, found) <= best * 1.001 + 1e-12


def test_the_order_of_messages_does_not_matter():
    channels, fidelity = draw_channels(3, most_rows=60)
    orders = [torch.randperm(c.weights.numel()) for c in channels]
    shuffled = [
        Channel(c.weights[order], c.columns, c.latency, c.seconds_per_byte)
        for c, order in zip(channels, orders, strict=True)
    ]
    plain, other = assign([channels, shuffled], fidelity)
    for bits, mixed, order in zip(plain, other, orders, strict=True):
        assert torch.equal(bits[order], mixed)


def test_what_fidelity_means():
    channels = [Channel(torch.rand(50, dtype=torch.float64) + 0.1, 64, 1e-4, 1e-8)]
    assert set(assign([channels], 0.0)[0][0].tolist()) == {2}
    assert set(assign([channels], 1.0)[0][0].tolist()) == {8}
    between = assign([channels], 0.5)[0][0]
    weights, bits = channels[0].weights, between.int()
    order = torch.argsort(weights)
    assert bool((bits[order][1:] >= bits[order][:-1]).all()), "rows of more weight have fewer bits than others"


@pytest.mark.parametrize("seed", range(10))
def test_how_fast_all_channels_are_does_not_matter(seed):
    """Where they are alike: then the same run chooses the same bits, whatever was measured."""
    drawn, fidelity = draw_channels(seed, count=3, most_rows=200)
    slow, fast = (
        assign([[Channel(c.weights, c.columns, latency, rate) for c in drawn]], fidelity)[0]
        for latency, rate in ((0.004, 3e-7), (1e-5, 1e-9))
    )
    for one, other in zip(slow, fast, strict=True):
        assert torch.equal(one, other)


def test_a_slow_channel_gets_fewer_bits():
    weights = torch.ones(100, dtype=torch.float64)
    fast, slow = assign([[Channel(weights, 64, 0.0, 1e-9), Channel(weights, 64, 0.0, 1e-8)]], 0.5)[0]
    assert fast.float().mean() > slow.float().mean()


def test_rows_that_do_not_vary_get_the_fewest_bits():
    assert set(assign([[Channel(torch.zeros(9, dtype=torch.float64), 64, 0.0, 1e-8)]], 0.5)[0][0].tolist()) == {2}


def test_workers_decide_together():
    """Two workers with a channel each come to what one with both would."""
    first, second = draw_channels(11, count=1, most_rows=50)[0], draw_channels(12, count=1, most_rows=50)[0]
    second = [Channel(c.weights, first[0].columns, c.latency, c.seconds_per_byte) for c in second]
    together = assign([first + second], 0.5)[0]
    from threading import Barrier, Thread

    barrier, board, results = Barrier(2), [None, None], [None, None]

    def run(me, channels):
        def gather(values):
            board[me] = values
            barrier.wait()
            answer = torch.stack(board)
            barrier.wait()
            return answer

        results[me] = assign([channels], 0.5, gather)[0]

    threads = [Thread(target=run, args=(me, channels)) for me, channels in enumerate((first, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(together[0], results[0][0]) and torch.equal(together[1], results[1][0])
