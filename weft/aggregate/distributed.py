"""The graph as one worker of a run holds it: what trains a model holds this, what layers are handed are views of it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise

from torch import Tensor

from weft.aggregate.cached_level import NOT_CACHED
from weft.aggregate.constant import ConstantInput, Name
from weft.aggregate.driver import Pass, PassDriver
from weft.aggregate.level import restrict
from weft.aggregate.noise import Noise
from weft.aggregate.rounds import MATERIALISED, Schedule
from weft.aggregate.topology import Reduce, Topology, Weight
from weft.aggregate.view import GraphView
from weft.aggregate.whole import WholeShard
from weft.aggregate.wire import RAW, Format
from weft.comm import Communicator
from weft.errors import UserError
from weft.graph.typedrows import Rows
from weft.partitioning import Shard


class DistributedGraph:
    """One worker's shard, its connection to the other workers, and what passes over the graph are prepared with.

    >>> graph = weft.open_part("synthetic:tiny")
    >>> model, x = weft.layers.Stack([weft.layers.GCN(16, 32), weft.layers.GCN(32, 4)]), graph.shard.x
    >>> with graph.training_pass(epoch=1) as view:
    ...     loss = torch.nn.functional.cross_entropy(model(view, x), graph.shard.y)
    >>> loss.backward()
    >>> with graph.exact_pass() as view:  # nothing is dropped
    ...     out = model(view, x)
    >>> tuple(out.shape)
    (300, 4)

    Every worker of the run makes the same calls in the same order.
    """

    def __init__(
        self,
        shard: Shard,
        comm: Communicator | None = None,
        format: Format = RAW,
        schedule: Schedule = MATERIALISED,
    ) -> None:
        """`format`: how rows look on the wire in training passes; `schedule`: in which order rows of others come."""
        self.shard = shard
        self.comm = comm or Communicator.alone()
        assert self.comm.num_workers == shard.num_workers, "a shard belongs to a run of its own worker count"
        self.topology: Topology = WholeShard(shard, self.comm, schedule)
        self._shared = Pass(self.comm, format)
        self._driver = self._drive(self.topology)  # of passes over the whole shard
        self._training: PassDriver | None = None  # of the training passes that `restrict` or `sample` prepared
        self._levels: tuple[PassDriver, ...] = ()  # that `restrict` prepared
        self.view = GraphView(self._driver)

    @property
    def noise(self) -> Noise:
        """What dropout and rounding draw from; its seed is the run's."""
        return self._shared.noise

    @property
    def format(self) -> Format:
        """How rows look on the wire in the passes that follow."""
        return self._shared.format

    @format.setter
    def format(self, format: Format) -> None:
        self._shared.format = format

    @property
    def global_ids(self) -> Tensor:
        """Of the vertices that this worker owns, int64 [N]."""
        return self.topology.ids

    @property
    def learned_ids(self) -> Tensor:
        """Of own vertices for which a row is learned, since they have no features, int64."""
        learned = self.shard.learned
        return self.global_ids[:0] if learned is None else self.global_ids[learned]

    @property
    def num_relations(self) -> int:
        return self.shard.num_relations

    # -- passes --------------------------------------------------------------------------------------------------

    @contextmanager
    def training_pass(self, epoch: int, *step: int) -> Iterator[GraphView]:
        """A forward pass of this epoch, and of a step of it, and the view for its model.

        With `restrict` or `sample` before it, each layer of a stack sees its level alone.
        """
        self.noise.begin(epoch, *step)
        yield self.view if self._training is None else GraphView(self._training)

    @contextmanager
    def exact_pass(self, sampled: bool = False) -> Iterator[GraphView]:
        """A pass over the whole graph in which nothing is dropped and rows travel as they are.

        `sampled`: over the minibatch that `sample` prepared instead.
        """
        before, self.format = self.format, RAW
        self.noise.begin(None)
        try:
            yield self.view if not sampled or self._training is None else GraphView(self._training)
        finally:
            self.format = before

    def restrict(self, sizes: Sequence[int]) -> None:
        """Makes training passes compute only what a loss on the first rows needs.

        sizes[k]: how many of the first rows layer k reads; sizes[k + 1] how many come out of it. Every worker calls
        it with as many sizes.
        """
        self._levels = tuple(self._drive(restrict(self.topology, *ends)) for ends in pairwise(sizes))
        self._training = PassDriver(self.topology, self._shared, levels=self._levels)
        if self._driver.constant is not None:
            self._share(self._driver.constant)

    def sample(
        self,
        topologies: Sequence[Topology],
        x: Rows,
        aggregates: Mapping[Name, Tensor] | None = None,
        boundaries: Mapping[int, Topology] | None = None,
    ) -> None:
        """Prepares the next training pass to be one over a minibatch: what each layer works on.

        `aggregates` are those of the input rows x over all their in-edges; the first layer, whose topology has no edges
        then, finds them computed. `boundaries`, by layer: edges along which the rows that the layer before gave come to
        where this layer wants them.
        """
        known = ConstantInput(x, _refuse, aggregates) if aggregates is not None and isinstance(x, Tensor) else None
        levels = []
        for depth, topology in enumerate(topologies):
            boundary = (boundaries or {}).get(depth)
            before = None if boundary is None else self._drive(boundary)
            levels.append(PassDriver(topology, self._shared, None if depth else known, before))
        self._training, self._levels = PassDriver(self.topology, self._shared, levels=levels), ()

    def view_of(self, topology: Topology) -> GraphView:
        """What a layer sees of some of the graph's rows and edges."""
        return GraphView(self._drive(topology))

    def _drive(self, topology: Topology) -> PassDriver:
        return PassDriver(topology, self._shared)

    # -- constant input ------------------------------------------------------------------------------------------

    def hold_constant(self, x: Tensor) -> None:
        """Declares x, this very tensor, unchanging: its aggregates are computed (and exchanged) once."""
        assert not x.requires_grad, "a tensor that trains is not constant"
        self._share(ConstantInput(x, lambda name: self._driver.aggregate_once(x, *name), lasting=True))

    def aggregate_once(self, x: Tensor, reduce: Reduce, weight: Weight) -> Tensor:
        """The aggregate of rows that never change, over the whole graph; of those that are held, it is kept."""
        constant = self._driver.constant
        if constant is not None and x is constant.rows and not isinstance(weight, Tensor):
            return constant.aggregate((reduce, weight, None))
        return self._driver.aggregate_once(x, reduce, weight)

    def _share(self, constant: ConstantInput) -> None:
        """Tells all drivers of the whole graph's passes, each of the rows that it reads."""
        self._driver.hold(constant)
        if self._training is not None and self._levels:
            self._training.hold(constant)
        for level in self._levels:
            level.hold(constant.part(level.num_rows, level.num_out))


def _refuse(name: Name) -> Tensor:
    raise UserError(NOT_CACHED)
