"""The executor of the training loop for runs with intervals: one epoch at a time, with its usage and its cost."""

import queue
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from weft.aggregate import DistributedGraph
from weft.errors import UserError
from weft.graph.typedrows import Rows
from weft.serverless.autotuner import Autotuner
from weft.serverless.dispatch import Dispatcher, RetryPolicy, Waste
from weft.serverless.graph_server import Event, GraphServer
from weft.serverless.intervals import Intervals
from weft.serverless.invoker import Invoker, Usage
from weft.serverless.invokers import make_invoker
from weft.serverless.latency import summarise_tasks
from weft.serverless.ledger import Ledger
from weft.serverless.pipeline import IntervalId, Pipeline, epoch_steps
from weft.serverless.prices import price, read_prices
from weft.serverless.propagation import Propagation, make_propagations
from weft.serverless.schedule import Schedule
from weft.serverless.server_links import ServerLinks
from weft.serverless.settings import ExecutorConfig
from weft.serverless.stages import Stage, compile_stages, user_modules
from weft.serverless.vertex_inputs import constant_inputs
from weft.serverless.weight_server import WeightServer
from weft.training.loss import GlobalLoss
from weft.training.optim import OptimConfig, learning_rate
from weft_function.user_function import UserFunction

INTERVALS = 16
ATTEMPTS_PER_WORKER = 2  # one is computed while the other travels
ATTEMPTS_AT_ONCE = 64  # if workers come from elsewhere, so that their number is not known
NOTHING: Mapping[str, Any] = {}


@dataclass
class PipelineExecutor:
    """Trains in epochs that go through a pipeline of intervals."""

    graph: DistributedGraph
    model: nn.Module
    x: Rows
    loss_of: GlobalLoss
    config: ExecutorConfig
    optim: OptimConfig
    seed: int
    epochs: int
    cache_input: bool
    make: Callable[[ExecutorConfig, tuple[str, ...]], Invoker] | None = None  # None: the configured invoker

    def __post_init__(self) -> None:
        self._opened = ExitStack()
        self._prices = read_prices(self.config.prices)

    # -- the run ------------------------------------------------------------------------------------------------------

    def start(
        self,
        optimiser: torch.optim.Optimizer,
        epoch: int,
        notes: Mapping[str, Any] = NOTHING,
        state: Mapping[str, Tensor] = NOTHING,
    ) -> None:
        """Starts after this epoch, from a checkpoint's notes and this worker's part of it (`state`)."""
        config, comm = self.config, self.graph.comm
        self._epoch = epoch
        stages = compile_stages(self.model, self.loss_of.multi_label, self.cache_input)
        self.invoker = self._make_invoker(stages)
        self._opened.callback(self.invoker.close)
        intervals = Intervals(self.graph.shard, comm, self._num_intervals)
        schedule = self._schedule(epoch, notes, has_rows=bool(state))
        propagations = make_propagations(self.graph.shard, comm, intervals, stages, self.x.dtype, schedule)
        constants = constant_inputs(self.graph, stages, self.x, self.loss_of)
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        links = ServerLinks(comm, events.put)
        self._opened.callback(links.close)
        ledger = Ledger(epoch)
        rate = partial(learning_rate, self.optim, epochs=self.epochs)
        weights = WeightServer(self.model, optimiser, comm, links, rate, self.optim.clip_norm, epoch, ledger)
        self.server = GraphServer(
            comm,
            run=secrets.token_hex(8),
            seed=self.seed,
            stages=stages,
            intervals=intervals,
            schedule=schedule,
            propagations=propagations,
            pipeline=self._make_pipeline(stages, intervals, propagations, schedule),
            constants=constants,
            events=events,
            links=links,
            ledger=ledger,
            weights=weights,
            dispatcher=Dispatcher(
                self.invoker,
                events.put,
                ledger.accept_response,
                max_attempts_at_once=ATTEMPTS_PER_WORKER * config.workers or ATTEMPTS_AT_ONCE,
                policy=RetryPolicy(comm.deadline_seconds, hedge_share=config.hedge),
            ),
            autotuner=self._make_autotuner(),
        )
        comm.barrier("graph servers are there")
        if schedule.continues:
            self.server.restore(state)

    def epoch(self, epoch: int) -> dict[str, Any]:
        """Trains until the weights contain the epoch's update; returns the epoch's record."""
        self._epoch = epoch
        server = self.server
        usage_before, waste_before = self.invoker.usage(), server.waste
        seconds_before, started = dict(vars(server.seconds)), time.perf_counter()
        server.train_until(epoch)
        seconds = time.perf_counter() - started
        usage, waste = self.invoker.usage() - usage_before, server.waste - waste_before
        phases = {name: value - seconds_before[name] for name, value in vars(server.seconds).items()}
        phases["rest"] = max(0.0, seconds - sum(phases.values()))
        loss = server.weights.losses.pop(epoch)
        functions = self._sum_over_servers(usage, waste)
        cost = price(self._prices, seconds, self.graph.comm.num_workers, functions)
        return {
            "seconds": seconds,
            "train_loss": loss,
            "grad_norm": server.weights.norms.pop(epoch),
            "phase_seconds": phases,
            "functions": functions,
            "tasks": summarise_tasks(self.graph.comm, server.dispatcher.take_finished()),
            "cost": cost.to_dict(),
        }

    def close(self) -> None:
        self._opened.close()

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def before_checkpoint(self) -> dict[str, Any]:
        """Gives every worker the optimiser's state of all weights; returns notes for the manifest. Collective."""
        self.server.weights.broadcast_optimiser_state()
        notes: dict[str, Any] = {"ledger": self.server.ledger.state()}
        if self.config.bound is not None:
            notes["schedule"] = {**self.server.schedule.state(), **self._layout}
        return notes

    def state(self) -> dict[str, Tensor]:
        """What this worker writes to a checkpoint, in addition to the weights and the optimiser's state."""
        return self.server.state(self._epoch)

    @property
    def _layout(self) -> dict[str, Any]:
        """What must be equal for a schedule to continue."""
        return {"workers": self.graph.comm.num_workers, "intervals": self._num_intervals}

    def _schedule(self, epoch: int, notes: Mapping[str, Any], has_rows: bool) -> Schedule:
        """The schedule of the checkpoint. After a change of workers or intervals the first epoch is exact."""
        noted = notes.get("schedule", {})
        same_layout = all(noted.get(name) == value for name, value in self._layout.items())
        cannot_continue = torch.tensor([not (has_rows and same_layout)], dtype=torch.int64)
        self.graph.comm.all_reduce(cannot_continue, "control", "rows of a checkpoint")
        return Schedule.resumed(
            noted,
            continues=not int(cannot_continue),
            staleness=self.config.bound,
            intervals=self._num_intervals,
            first_epoch=epoch + 1,
            plateau=self.config.plateau,
        )

    # -- parts of the run ---------------------------------------------------------------------------------------------

    @property
    def _num_intervals(self) -> int:
        return self.config.intervals or INTERVALS

    def _make_invoker(self, stages: tuple[Stage, ...]) -> Invoker:
        trusted = UserFunction.trusted = user_modules(stages)
        if trusted and self.config.name == "lambda":
            raise UserError(
                f"layers of your own ({', '.join(trusted)}) are not in the function's archive: set executor.name "
                "to pool or ray"
            )
        make = self.make or partial(make_invoker, deadline_seconds=self.graph.comm.deadline_seconds)
        return make(self.config, trusted)

    def _make_pipeline(
        self,
        stages: tuple[Stage, ...],
        intervals: Intervals,
        propagations: Mapping[int, Propagation],
        schedule: Schedule,
    ) -> Pipeline:
        server = self.graph.comm.worker
        edge_stages = [number for number, one in propagations.items() if one.gathering.edge is not None]
        forward, backward = [set[IntervalId]() for _ in intervals], [set[IntervalId]() for _ in intervals]
        # The mean change of these intervals' rows corrects stale rows.
        never_stale = {IntervalId(server, interval) for interval in range(schedule.num_never_stale)}
        for propagation in propagations.values():
            for direction, reads in ((propagation.forward, forward), (propagation.backward, backward)):
                for interval in intervals:
                    reads[interval] |= direction.gather.sources(interval)
                    if direction.reads_stale(interval):
                        reads[interval] |= never_stale
        steps = epoch_steps(len(stages), edge_stages)
        return Pipeline(server, steps, schedule, self.epochs, forward, backward)

    def _make_autotuner(self) -> Autotuner | None:
        if self.config.most_workers is None or self.config.name == "inline":
            return None
        return Autotuner(self.config.workers, self.config.most_workers)

    def _sum_over_servers(self, usage: Usage, waste: Waste) -> dict[str, float]:
        """The usage and the waste of all servers' functions. Collective."""
        found = {name: value for name, value in vars(usage).items() if name != "max_workers"}
        found |= {"hedges": waste.hedges, "retries": waste.retries, "wasted_seconds": waste.seconds}
        counts = torch.tensor([float(count) for count in found.values()], dtype=torch.float64)
        self.graph.comm.all_reduce(counts, "control", "what functions did")
        return dict(zip(found, counts.tolist(), strict=True))
