"""Optimisers and learning-rate schedules, built from a validated config, and the gradient's norm."""

import math
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from weft.comm import Communicator
from weft.layers import replicated_parameters
from weft.training.optimisers import SGD, Adam


class OptimConfig(BaseModel):
    """How weights move."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["adam", "adamw", "sgd"] = Field("adam", description="optimiser")
    lr: float = Field(0.01, gt=0, description="learning rate")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty (adam, sgd) or decoupled decay (adamw)")
    decay_first_layer_only: bool = Field(False, description="apply weight_decay to the first layer alone (as GCN did)")
    momentum: float = Field(0.9, ge=0, lt=1, description="of sgd")
    schedule: Literal["constant", "cosine", "step", "exponential"] = Field("constant", description="of the rate")
    warmup_epochs: int = Field(0, ge=0, description="epochs over which the rate grows from 0")
    step_epochs: int = Field(100, ge=1, description="schedule step: epochs between two cuts")
    gamma: float = Field(0.5, gt=0, le=1, description="schedules step and exponential: factor of a cut, or of an epoch")
    clip_norm: float | None = Field(None, gt=0, description="largest norm of the gradient")


def build_optimiser(config: OptimConfig, model: nn.Module) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [{"params": parameters, "weight_decay": config.weight_decay}]
    if config.decay_first_layer_only:
        first = {id(parameter) for parameter in next(iter(getattr(model, "layers", [model]))).parameters()}
        groups = [
            {"params": [p for p in parameters if id(p) in first], "weight_decay": config.weight_decay},
            {"params": [p for p in parameters if id(p) not in first], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
    if config.name == "sgd":
        return SGD(groups, config.lr, config.momentum)
    return Adam(groups, config.lr, decoupled=config.name == "adamw")


def learning_rate(config: OptimConfig, epoch: int, epochs: int) -> float:
    """The rate of an epoch (from 1): a function of its number, so that a resumed run needs no state for it."""
    if epoch <= config.warmup_epochs:
        return config.lr * epoch / config.warmup_epochs
    done = epoch - 1 - config.warmup_epochs
    if config.schedule == "cosine":
        span = max(epochs - config.warmup_epochs, 1)
        return config.lr * 0.5 * (1 + math.cos(math.pi * min(done / span, 1.0)))
    if config.schedule == "step":
        return config.lr * config.gamma ** (done // config.step_epochs)
    if config.schedule == "exponential":
        return config.lr * config.gamma**done
    return config.lr


def gradient_norm(model: nn.Module, comm: Communicator) -> float:
    """The norm of the global gradient. Learned rows lie at one worker each, so their squares are summed over all."""
    replicated = [p.grad for p in replicated_parameters(model) if p.grad is not None]
    square = sum(float(n) ** 2 for n in torch._foreach_norm(replicated)) if replicated else 0.0
    embedding: nn.Parameter | None = getattr(model, "embedding", None)
    if embedding is not None and embedding.grad is not None:
        own = embedding.grad.double().square().sum().view(1)
        comm.all_reduce(own, "control", "gradient norm")
        square += float(own)
    return math.sqrt(square)


def clip_gradients(model: nn.Module, norm: float, largest: float | None) -> None:
    """Scales all gradients so that their norm, which is `norm` now, is `largest` at the most."""
    if largest is not None and norm > largest:
        torch._foreach_mul_([p.grad for p in model.parameters() if p.grad is not None], largest / norm)
