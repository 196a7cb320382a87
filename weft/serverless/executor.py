"""A run's graph server as the training loop sees it: an epoch at a time, with what the functions did."""

import math
import os
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.aggregate import GraphView
from weft.errors import UserError, optional
from weft.layers import Separable
from weft.serverless.dispatch import Dispatcher, Patience, Tuner, Waste
from weft.serverless.invoker import InlineInvoker, Invoker, Usage
from weft.serverless.ledger import Ledger
from weft.serverless.pipeline import Bound
from weft.serverless.placement import Placed
from weft.serverless.prices import price, read_prices
from weft.serverless.server import Server
from weft.serverless.settings import ExecutorConfig
from weft.serverless.weights import Weights, share_optimiser_state
from weft.train.loss import GlobalLoss
from weft.train.optim import OptimConfig, learning_rate
from weft_function.ops import Call
from weft_function.request import TaskId

INTERVALS = 16
SETTLES_OVER = 10  # epochs that the loss is compared over


@dataclass
class Pipelined:
    """Epochs that go through a pipeline of intervals."""

    view: GraphView
    model: nn.Module
    x: Tensor
    loss_of: GlobalLoss
    config: ExecutorConfig
    optim: OptimConfig
    seed: int
    epochs: int
    cache_input: bool
    make: Callable[[ExecutorConfig, tuple[str, ...]], Invoker] | None = None  # who does tasks; as configured, if None

    def __post_init__(self) -> None:
        self._opened = ExitStack()
        self._losses: list[float] = []
        self._prices = read_prices(self.config.prices)

    def start(self, optimiser: torch.optim.Optimizer, epoch: int) -> None:
        """Begins after this epoch."""
        config, comm = self.config, self.view.comm
        self._optimiser = optimiser
        Call.trusted = own_modules(self.model)
        if Call.trusted and config.name == "lambda":
            raise UserError(
                f"layers of your own ({', '.join(Call.trusted)}) are not in the function's archive: set executor.name "
                "to pool or ray"
            )
        self.invoker = (self.make or make_invoker)(config, Call.trusted)
        self._opened.callback(self.invoker.close)

        def dispatcher(events: Callable[[object], None], accept: Callable[[TaskId], bool]) -> Dispatcher:
            at_once = 2 * config.workers if config.workers else 64  # where others bring workers, nobody knows how many
            patience = Patience(hedge_share=config.hedge)
            return Dispatcher(self.invoker, events, accept, most_at_once=at_once, patience=patience)

        def weights(tell: Callable[..., None], ledger: Ledger) -> Weights:
            def rate_of(epoch: int) -> float:
                return learning_rate(self.optim, epoch, self.epochs)

            return Weights(self.model, optimiser, comm, tell, rate_of, self.optim.clip_norm, epoch, ledger)

        tuner = None
        if config.most_workers is not None and config.name != "inline":
            tuner = Tuner(config.workers, config.most_workers)
        self.server = Server(
            self.view,
            self.model,
            self.x,
            self.loss_of,
            weights,
            dispatcher,
            run=secrets.token_hex(8),
            seed=self.seed,
            intervals=config.intervals or INTERVALS,
            bound=Bound(config.bound, epoch + 1),
            last_epoch=self.epochs,
            aggregates_input=self.cache_input,
            tuner=tuner,
        )
        self._opened.callback(self.server.close)

    def epoch(self, epoch: int) -> dict[str, Any]:
        """Until the weights hold the epoch's update: the loss, the norm of the gradient, and what it took."""
        before, waste = self.invoker.usage(), self.server.waste
        at, started = dict(self.server.seconds), time.perf_counter()
        self.server.until(epoch)
        seconds = time.perf_counter() - started
        used, wasted = self.invoker.usage() - before, self.server.waste - waste
        phases = {name: self.server.seconds[name] - at[name] for name in ("graph", "wait")}
        phases["rest"] = max(0.0, seconds - sum(phases.values()))
        loss = self.server.weights.losses.pop(epoch)
        self._settle(epoch, loss)
        functions = self._totals(used, wasted)
        cost = price(self._prices, seconds, self.view.comm.num_workers, functions)
        return {
            "seconds": seconds,
            "train_loss": loss,
            "grad_norm": self.server.weights.norms.pop(epoch),
            "phase_seconds": phases,
            "functions": functions,
            "cost": cost.described(),
        }

    def before_checkpoint(self) -> dict[str, Any]:
        """Every worker's optimiser knows all weights' state; what the manifest says of the ledger."""
        share_optimiser_state(self._optimiser, self.server.weights, self.view.comm)
        return {"ledger": self.server.ledger.state()}

    def close(self) -> None:
        self._opened.close()

    def _settle(self, epoch: int, loss: float) -> None:
        """Back to the exact order where the loss hardly falls any more; all servers see the same losses."""
        self._losses.append(loss)
        config, bound = self.config, self.server.bound
        if config.settle is None or bound.staleness is None or bound.exact_from is not None:
            return
        if len(self._losses) > SETTLES_OVER and math.isfinite(loss):
            before = self._losses[-1 - SETTLES_OVER]
            if before - loss < config.settle * abs(before):
                # Some interval may be as far as one epoch beyond what may begin now.
                self.server.settle(epoch + bound.staleness + 2)

    def _totals(self, used: Usage, wasted: Waste) -> dict[str, float]:
        """What all servers' functions did, and what of it was in vain."""
        found = {name: value for name, value in vars(used).items() if name != "most_workers"}
        found |= {"hedges": wasted.hedges, "retries": wasted.retries, "wasted_seconds": wasted.seconds}
        counts = torch.tensor([float(count) for count in found.values()], dtype=torch.float64)
        self.view.comm.all_reduce(counts, "control", "what functions did")
        return dict(zip(found, counts.tolist(), strict=True))


def own_modules(model: nn.Module) -> tuple[str, ...]:
    """Modules of a user's own that the model's layers come from: what workers that we start may run."""
    return tuple(sorted({type(layer).__module__ for layer in model.modules() if isinstance(layer, Separable)}))


def make_invoker(config: ExecutorConfig, trust: tuple[str, ...] = ()) -> Invoker:
    """Who does the tasks, as the config says. `trust`: modules of a user's own that workers started here may run."""
    if config.name == "inline":
        return InlineInvoker()
    with optional(f"executor {config.name}"):
        there = _elsewhere(config, trust)
    return Placed(there, config.workers) if config.placement == "auto" else there


def own_port(address: str) -> str:
    """Where this server listens: those of a run that share a machine take ports one after another."""
    head, _, port = address.rpartition(":")
    return f"{head}:{int(port) + int(os.environ.get('LOCAL_RANK', '0'))}" if port.isdigit() else address


def _elsewhere(config: ExecutorConfig, trust: tuple[str, ...]) -> Invoker:
    halve, delay = config.wire == "bfloat16", config.delay_ms / 1000
    if config.name == "pool":
        from weft.serverless.pool import PoolInvoker, run_key

        return PoolInvoker(config.workers, own_port(config.bind), run_key(), halve, delay, trust)
    if config.name == "ray":
        from weft.serverless.actors import RayInvoker

        return RayInvoker(config.workers, trust)
    from weft.serverless.lambdas import LambdaInvoker, OneTask

    if config.mode == "task":
        return OneTask(config.function, config.workers, config.endpoint, halve)
    return LambdaInvoker(
        config.function,
        config.workers,
        own_port(config.bind),
        config.endpoint,
        config.lease_seconds,
        halve=halve,
        delay_seconds=delay,
        most_workers=config.most_workers or config.workers,
        advertise=own_port(config.advertise) if config.advertise is not None else None,
    )
