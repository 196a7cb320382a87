"""A PyG model, unchanged, trained on weft's minibatches, on one process or several.

python examples/pyg_model.py

weft partition synthetic:demo --parts 2 --out parts
torchrun --nproc-per-node 2 examples/pyg_model.py parts
"""

import sys

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

import weft


def train(data: str = "synthetic:demo", epochs: str = "5", fanout: str = "10") -> None:
    with weft.init_workers() as comm:
        graph = weft.open_part(data, comm)
        torch.manual_seed(0)  # the same weights on every worker
        model = GraphSAGE(graph.shard.x.shape[1], 64, num_layers=2, out_channels=graph.shard.num_classes)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        # 2: the number of the model's layers. Drawn are in-neighbours per vertex; -1: all.
        with weft.Loader(graph, 2, batch=512, fanout=[int(fanout)] * 2, seed=0, epochs=int(epochs)) as loader:
            for epoch in range(1, int(epochs) + 1):
                losses = torch.zeros(len(loader))
                for batch in loader:
                    sampled = batch.to_pyg()  # a torch_geometric.data.Data, its first vertices the seeds
                    optimiser.zero_grad()
                    out = model(sampled.x, sampled.edge_index)[: sampled.batch_size]
                    loss = cross_entropy(out, sampled.y, reduction="sum") / batch.total_seeds  # this worker's share
                    loss.backward()
                    weft.all_reduce_gradients(comm, model.parameters())
                    optimiser.step()
                    losses[batch.step] = loss.detach()
                mean = comm.all_reduce(losses).mean()
                if comm.worker == 0:
                    print(f"epoch {epoch}: loss {mean:.6f}")

        with torch.no_grad(), weft.Loader(graph, 2, batch=512, fanout=[-1, -1], seeds="test") as loader:
            counts = torch.zeros(2)
            for batch in loader:
                sampled = batch.to_pyg()
                predicted = model(sampled.x, sampled.edge_index)[: sampled.batch_size].argmax(1)
                counts += torch.tensor([(predicted == sampled.y).sum(), sampled.batch_size])
        right, seeds = comm.all_reduce(counts)
        if comm.worker == 0:
            print(f"test accuracy {right / seeds:.4f}")


if __name__ == "__main__":
    train(*sys.argv[1:])
