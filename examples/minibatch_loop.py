"""A training loop of your own over sampled minibatches, on one process or several.

python examples/minibatch_loop.py

weft partition synthetic:demo --parts 2 --out parts
torchrun --nproc-per-node 2 examples/minibatch_loop.py parts
"""

import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import weft


def train(data: str = "synthetic:demo", epochs: str = "5") -> None:
    with weft.init_workers() as comm:
        graph = weft.open_part(data, comm)
        num_features, num_classes = graph.shard.x.shape[1], graph.shard.num_classes
        torch.manual_seed(0)  # the same weights on every worker
        model = weft.layers.Stack([weft.layers.SAGE(num_features, 64), weft.layers.SAGE(64, num_classes)])
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)

        # A minibatch has 512 seeds over all workers together, and is the same whatever their number.
        with weft.Loader(graph, model, batch=512, fanout=[15, 10], seed=0, epochs=int(epochs)) as loader:
            for epoch in range(1, int(epochs) + 1):
                losses = torch.zeros(len(loader))
                for batch in loader:
                    optimiser.zero_grad()
                    out = model(batch.graph, batch.x)
                    loss = cross_entropy(out, batch.y, reduction="sum") / batch.total_seeds  # this worker's share
                    loss.backward()
                    weft.all_reduce_gradients(comm, model.parameters())
                    optimiser.step()
                    losses[batch.step] = loss.detach()
                mean = comm.all_reduce(losses).mean()
                if comm.worker == 0:
                    print(f"epoch {epoch}: loss {mean:.6f}")

        accuracy = evaluate(model, graph)
        if comm.worker == 0:
            print(f"test accuracy {accuracy:.4f}")


@torch.no_grad()
def evaluate(model: nn.Module, graph: weft.DistributedGraph) -> float:
    """The accuracy on all workers' test vertices, over the full graph: all neighbours, nothing dropped."""
    with graph.exact_pass() as view:
        predicted = model(view, graph.shard.x).argmax(1)
    mask = graph.shard.test_mask
    right = (predicted == graph.shard.y)[mask].sum()
    counts = graph.comm.all_reduce(torch.stack([right, mask.sum()]))
    return float(counts[0] / counts[1])


if __name__ == "__main__":
    train(*sys.argv[1:])
