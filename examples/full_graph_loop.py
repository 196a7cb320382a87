"""A training loop of your own over the full graph: one step per epoch, on one process or several.

python examples/full_graph_loop.py

weft partition synthetic:demo --parts 2 --out parts
torchrun --nproc-per-node 2 examples/full_graph_loop.py parts
"""

import sys

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import weft


class MeanLayer(nn.Module):
    """A layer of your own: it does not know how many workers there are."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.neighbours = nn.Linear(num_in, num_out)
        self.own = nn.Linear(num_in, num_out, bias=False)

    def forward(self, graph: weft.GraphView, x: Tensor) -> Tensor:
        return self.neighbours(graph.aggregate(x, "mean")) + self.own(graph.own(x))


def train(data: str = "synthetic:demo", epochs: str = "20") -> None:
    with weft.init_workers() as comm:
        graph = weft.open_part(data, comm)  # this worker's vertices, with their in-edges
        shard = graph.shard
        x, y, mask = shard.x, shard.y, shard.train_mask
        graph.hold_constant(x)  # aggregates of the features are exchanged once, not in every epoch
        num_train = comm.all_reduce(mask.sum())  # over all workers

        torch.manual_seed(0)  # the same weights on every worker
        model = weft.layers.Stack([MeanLayer(x.shape[1], 64), MeanLayer(64, shard.num_classes)])  # relu, dropout 0.5
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        for epoch in range(1, int(epochs) + 1):
            optimiser.zero_grad()
            with graph.training_pass(epoch) as view:
                out = model(view, x)
            loss = cross_entropy(out[mask], y[mask], reduction="sum") / num_train  # this worker's share
            loss.backward()
            weft.all_reduce_gradients(comm, model.parameters())
            optimiser.step()
            total = comm.all_reduce(loss.detach())
            if comm.worker == 0:
                print(f"epoch {epoch}: loss {total:.6f}")

        accuracy = evaluate(model, graph, x)
        if comm.worker == 0:
            print(f"test accuracy {accuracy:.4f}")


@torch.no_grad()
def evaluate(model: nn.Module, graph: weft.DistributedGraph, x: Tensor) -> float:
    """The accuracy on all workers' test vertices, with nothing dropped."""
    with graph.exact_pass() as view:
        predicted = model(view, x).argmax(1)
    mask = graph.shard.test_mask
    right = (predicted == graph.shard.y)[mask].sum()
    counts = graph.comm.all_reduce(torch.stack([right, mask.sum()]))
    return float(counts[0] / counts[1])


if __name__ == "__main__":
    train(*sys.argv[1:])
