"""Integers on the wire whose bits are chosen row by row, between epochs, from what was seen to travel.

`weft.aggregate.bits` solves the problem; here it is put together out of the ranges of rows, the coefficients that they
are multiplied by where they arrive, and the speeds of the channels, and what was chosen is told to the receivers.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from weft import kernels
from weft.aggregate.bits import Channel, Problem, assign
from weft.aggregate.blocks import Block
from weft.aggregate.quantised import Key, MessageSet, Quantised, state_name
from weft.aggregate.wire import Aggregation, BitsChosen, FormatTraits, Histogram
from weft.comm import Channels, Communicator, MessageLayout, Route, measure_channels


class Adaptive(Quantised):
    """2, 4 or 8 bits for each row, by its range, its coefficients and the speed of the channels.

    The first epoch takes 8 bits for everything. Bits are chosen after it, and then after every `cycle` epochs.
    """

    traits = FormatTraits("integer", packs=True, takes_delta=True, adaptive=True)

    def __init__(self, cycle: int, fidelity: float, delta: bool = False) -> None:
        super().__init__(8, delta)
        self.name = "adaptive"
        self.cycle, self.fidelity = cycle, fidelity
        self.channels: Channels | None = None

    def _begin(self, aggregation: Aggregation, key: Key, route: Route, columns: int) -> MessageSet:
        messages = super()._begin(aggregation, key, route, columns)
        device = aggregation.topology.ids.device
        messages.spans = {
            peer: torch.zeros(layout.bits.numel(), device=device) for peer, layout in messages.leaving.items()
        }
        return messages

    def _first_bits(self, key: Key, side: str, peer: int, count: int) -> Tensor:
        before = self._restored.pop(state_name(key, side, peer), None)
        return before if before is not None and before.numel() == count else super()._first_bits(key, side, peer, count)

    def end_epoch(self, epoch: int, comm: Communicator) -> BitsChosen | None:
        if comm.num_workers == 1 or (epoch != 1 and epoch % self.cycle):
            return None
        started = time.perf_counter()
        sets = [self.message_sets[key] for key in sorted(self.message_sets)]
        _share(sets, self.choose(sets, comm), comm)
        seconds = time.perf_counter() - started
        return BitsChosen(seconds, self._all_rows(comm))

    def _all_rows(self, comm: Communicator) -> Histogram:
        """The histogram over all workers."""
        found = self.histogram()
        places = [(layer, direction, bits) for layer in found for direction in found[layer] for bits in (2, 4, 8)]
        counts = torch.tensor([found[layer][direction][bits] for layer, direction, bits in places])
        comm.all_reduce(counts, "control", "counts of rows by bits")
        for (layer, direction, bits), count in zip(places, counts.tolist(), strict=True):
            found[layer][direction][bits] = count
        return found

    def choose(self, sets: Sequence[MessageSet], comm: Communicator) -> list[list[Tensor]]:
        """Bits of every row that leaves this worker, of each message set by peer."""
        if self.channels is None:
            largest = max((layout.num_bytes for messages in sets for layout in messages.leaving.values()), default=0)
            self.channels = measure_channels(comm, largest)
        groups = self._turns(comm.num_workers - 1)
        chosen = assign(
            [self._problem(group, comm, self.channels) for group in groups],
            self.fidelity,
            lambda values: comm.all_gather(values, "control", "variances and times"),
        )
        bits: dict[int, list[Tensor]] = {id(messages): [] for messages in sets}
        for group, by_peer in zip(groups, chosen, strict=True):
            for (peer, pieces), message in zip(_by_peer(group), by_peer, strict=True):
                counts = [messages.leaving[peer].bits.numel() for messages in pieces]
                for messages, piece in zip(pieces, torch.split(message, counts), strict=True):
                    bits[id(messages)].append(piece)
        return [bits[id(messages)] for messages in sets]

    def _turns(self, num_peers: int) -> list[list[MessageSet]]:
        """Message sets that go to the same peer one after another: pieces of one message, chosen for together."""
        rounds = Counter((number, tensor, direction) for number, _, tensor, direction in self.message_sets)
        turns: dict[Key, list[MessageSet]] = {}
        for key in sorted(self.message_sets):
            number, round, tensor, direction = key
            turn = round * num_peers // rounds[number, tensor, direction]
            turns.setdefault((number, turn, tensor, direction), []).append(self.message_sets[key])
        return list(turns.values())

    def _problem(self, sets: Sequence[MessageSet], comm: Communicator, channels: Channels) -> Problem:
        made = []
        for messages in sets:
            if messages.direction == "forward" and messages.importance is None:
                messages.importance = _importance(messages, comm)
        for peer, pieces in _by_peer(sets):
            weights = torch.cat([self._weights(messages, peer) for messages in pieces])
            latency, rate = channels.latency[comm.worker, peer], channels.seconds_per_byte[comm.worker, peer]
            made.append(Channel(weights, pieces[0].columns, float(latency), float(rate)))
        return made

    @staticmethod
    def _weights(messages: MessageSet, peer: int) -> Tensor:
        weights = messages.spans[peer].double().cpu().square() * (messages.columns / 6)
        return weights if messages.importance is None else weights * messages.importance[peer].double().cpu()

    # -- going on after a checkpoint ----------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        found = super().state()
        for key, messages in self.message_sets.items():
            for side, layouts in (("leaving", messages.leaving), ("arriving", messages.arriving)):
                found |= {state_name(key, side, peer): layout.bits for peer, layout in layouts.items()}
        if self.channels is not None:
            found |= {"latency": self.channels.latency, "seconds_per_byte": self.channels.seconds_per_byte}
        return found

    def restore(self, state: Mapping[str, Tensor]) -> None:
        rest = dict(state)
        if "latency" in rest:
            self.channels = Channels(rest.pop("latency"), rest.pop("seconds_per_byte"))
        super().restore(rest)


def _by_peer(sets: Sequence[MessageSet]) -> list[tuple[int, list[MessageSet]]]:
    """For each peer, the message sets in which rows leave for it."""
    peers = sorted({peer for messages in sets for peer in messages.leaving})
    return [(peer, [messages for messages in sets if peer in messages.leaving]) for peer in peers]


def _importance(messages: MessageSet, comm: Communicator) -> dict[int, Tensor]:
    """By peer, for each row that leaves: the sum of the squared coefficients that it is multiplied by there."""
    mine = squared_coefficients(messages.block, messages.linear, messages.degrees)
    leaving: list[Tensor | None] = [None] * comm.num_workers
    arriving: list[Tensor | None] = [None] * comm.num_workers
    for peer in messages.arriving:  # what came from there is what they want to know about
        leaving[peer] = mine[messages.route.recv_rows[peer]].contiguous()
    for peer, layout in messages.leaving.items():
        arriving[peer] = torch.empty(layout.bits.numel(), device=mine.device)
    comm.post(leaving, arriving, "topology", "squared coefficients").wait()
    return {peer: rows for peer, rows in enumerate(arriving) if rows is not None}


def squared_coefficients(block: Block, linear: bool, degrees: Tensor) -> Tensor:
    """Of each column of a block, over its edges, float32; attention is taken to weigh all in-edges of a row alike."""
    csr = block.csr
    counts = csr.degrees()
    rows = torch.repeat_interleave(torch.arange(csr.num_rows, device=counts.device), counts)
    if linear:
        value = torch.ones(csr.num_edges, device=counts.device) if csr.weight is None else csr.weight.float()
        if block.row_scale is not None:
            value = value * block.row_scale.float()[rows]
        if block.col_scale is not None:
            value = value * block.col_scale.float()[csr.indices.long()]
    else:
        value = 1.0 / degrees.clamp(min=1).float()[rows]
    sums = torch.zeros(csr.num_cols, 1, device=counts.device)
    return kernels.scatter_add(sums, csr.indices, value.square()[:, None]).squeeze(1)  # in one order on every device


def _share(sets: Sequence[MessageSet], chosen: Sequence[Sequence[Tensor]], comm: Communicator) -> None:
    """Tells every receiver with how many bits rows will come, of all message sets in one message."""
    leaving: list[list[Tensor]] = [[] for _ in range(comm.num_workers)]
    sizes: list[list[int]] = [[] for _ in range(comm.num_workers)]
    for messages, bits in zip(sets, chosen, strict=True):
        for peer, some in zip(sorted(messages.leaving), bits, strict=True):
            messages.leaving[peer] = MessageLayout.of(some.to(messages.leaving[peer].bits.device), messages.columns)
            leaving[peer].append(messages.leaving[peer].bits)
        for peer, layout in messages.arriving.items():
            sizes[peer].append(layout.bits.numel())
    device = comm.device
    arriving = [torch.empty(sum(counts), dtype=torch.uint8, device=device) if counts else None for counts in sizes]
    comm.post([torch.cat(bits) if bits else None for bits in leaving], arriving, "control", "bits of rows").wait()
    coming = [
        iter(() if rows is None else torch.split(rows, counts)) for rows, counts in zip(arriving, sizes, strict=True)
    ]
    for messages in sets:
        for peer in messages.arriving:
            messages.arriving[peer] = MessageLayout.of(next(coming[peer]), messages.columns)
