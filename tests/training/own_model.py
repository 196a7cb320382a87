"""A model as a user would write it, importable by workers."""

import torch

from weft import GraphView, UserError


class Own(torch.nn.Module):
    def __init__(self, num_in, num_out):
        super().__init__()
        self.lin = torch.nn.Linear(num_in, num_out)
        self.root = torch.nn.Linear(num_in, num_out)

    def forward(self, graph: GraphView, x):
        return self.lin(graph.aggregate(x, reduce="mean")) + self.root(x)


def build(num_in, num_out, config):
    return Own(num_in, num_out)


class Noisy(Own):
    """With torch's own random numbers."""

    def forward(self, graph: GraphView, x):
        return super().forward(graph, torch.nn.functional.dropout(x, 0.3, self.training))


def noisy(num_in, num_out, config):
    return Noisy(num_in, num_out)


class FailsEvaluation(Own):
    """One that trains, and fails where it is evaluated."""

    def forward(self, graph: GraphView, x):
        if not self.training:
            raise UserError("this model cannot be evaluated")
        return super().forward(graph, x)


def build_fails_evaluation(num_in, num_out, config):
    return FailsEvaluation(num_in, num_out)
