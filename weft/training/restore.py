"""Putting a checkpoint's tensors back: weights, optimiser, random numbers, and how rows travel."""

from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor, nn

from weft.aggregate import DistributedGraph
from weft.errors import UserError
from weft.training.generation import EXCHANGE, Loaded, under


def fill(model: nn.Module, optimiser: torch.optim.Optimizer | None, loaded: Loaded, where: Path) -> dict[str, Tensor]:
    """Fills model and optimiser and returns the best weights so far."""
    state = loaded.replicated | loaded.rows
    best = {name.removeprefix("best."): tensor for name, tensor in state.items() if name.startswith("best.")}
    weights = {name.removeprefix("model."): tensor for name, tensor in state.items() if name.startswith("model.")}
    load_weights(model, weights, where)
    if optimiser is not None:
        _restore_optimiser(optimiser, {name: state[name] for name in state if name.startswith("optimiser.")})
    return best


def restore_own(loaded: Loaded, graph: DistributedGraph) -> bool:
    """Goes on with random numbers and with how rows travelled, where every worker holds the rows that it held then.

    Otherwise all workers begin these anew: what one sends must be what the other expects. Returns which it was.
    """
    fits = bool(loaded.own) and torch.equal(loaded.own["placement"], placement(graph))
    everywhere = torch.tensor([int(fits)])
    graph.comm.all_reduce(everywhere, "control", "whether rows lie as before", "min")
    if not int(everywhere):
        return False
    torch.set_rng_state(loaded.own["random"])
    if graph.comm.device.type == "cuda" and "random.cuda" in loaded.own:
        torch.cuda.set_rng_state(loaded.own["random.cuda"], graph.comm.device)
    graph.format.restore(under(EXCHANGE, loaded.own))
    return True


def placement(graph: DistributedGraph) -> Tensor:
    """A digest of which rows stand where, and which rows come from others, uint8 [32]."""
    digest = sha256()
    for ids in (graph.global_ids, graph.shard.halo_ids):
        digest.update(ids.cpu().contiguous().numpy().data)
    return torch.tensor(list(digest.digest()), dtype=torch.uint8)


def load_weights(model: nn.Module, weights: dict[str, Tensor], where: Path) -> None:
    expected = model.state_dict()
    wrong = [name for name, tensor in expected.items() if name not in weights or weights[name].shape != tensor.shape]
    if wrong or weights.keys() - expected.keys():
        name = wrong[0] if wrong else min(weights.keys() - expected.keys())
        raise UserError(f"{where} belongs to another model (parameter {name} does not fit): use the run's own config")
    model.load_state_dict(weights)


def _restore_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Tensor]) -> None:
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    optimiser.state.clear()
    for name, tensor in state.items():
        _, number, key, *_ = name.split(".")
        parameter = parameters[int(number)]
        optimiser.state[parameter][key] = tensor if key == "step" else tensor.to(parameter)
