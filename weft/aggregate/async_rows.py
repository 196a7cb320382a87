"""Asynchronous tensors: work on rows that are final goes on while others are still to come, forward and backward.

Forward, the first rows of an aggregate, those without remote in-edges, are final before anything has arrived. Under a
schedule that overlaps, the aggregation returns then: its result is an `AsyncRows`, whose `Completion` knows which rows
are final and what is waited for until the others are. Backward, the gradient of rows that other workers have read is
complete only when their shares have come home; it is an `AsyncRows`, too.

An operation that does not know of this gets complete rows: `AsyncRows` waits before it, in the forward pass and in
autograd's own code. One that does takes the plain tensor and its completion (`split`), does its work row by row
(`Completion.do`), and returns an `AsyncRows` with the same completion: a product, an activation and the next product
follow each arrival on the rows that are final then, while others still travel.

Where nothing has to arrive, work can wait until rows that leave first are on their way: `Deferred`.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

Step = Callable[[slice], object]  # works on some rows
Arrival = tuple[Callable[[], object], Sequence[slice]]  # waits for rows and takes them in; the rows that are final then


class Completion:
    """Rows that become final one span after another, and the steps to be done on each span when it is."""

    def __init__(self, ready: Sequence[slice] = (), arrivals: Iterable[Arrival] = ()) -> None:
        """`ready`: the rows that are final now; `arrivals`: what is waited for, in order. Spans cover all rows once."""
        self._final = list(ready)
        self._arrivals = deque(arrivals)
        self._steps: list[Step] = []
        self._failure: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether all rows are final and all steps done."""
        return not self._arrivals and self._failure is None

    def do(self, step: Step) -> None:
        """Does a step on the rows that are final, and on the others when they are."""
        _run([step], self._final)
        self.do_later(step)

    def do_later(self, step: Step) -> None:
        """Does a step on the rows that are not final, when they are."""
        if not self.done:
            self._steps.append(step)

    def wait(self) -> None:
        """Takes in all arrivals, one after another, and does the steps on the rows that are final after each."""
        if self._failure is not None:
            raise RuntimeError(f"these rows never arrived: {self._failure}") from self._failure
        while self._arrivals:
            arrive, spans = self._arrivals.popleft()
            try:
                arrive()
                _run(self._steps, spans)
            except BaseException as error:
                self._failure = error
                raise
            self._final.extend(spans)
        self._steps.clear()  # they hold tensors, whose memory is wanted again


class Deferred(Completion):
    """Rows that are worked on when somebody asks for them; nothing has to arrive."""

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self._num_rows, self._span, self._all = num_rows, slice(0, 0), False

    @property
    def done(self) -> bool:
        return self._all

    def do(self, step: Step) -> None:
        _run([step], [self._span])
        self.do_later(step)

    def reach(self, rows: slice) -> None:
        """Does the steps on some rows, and on those between them and the ones that are done."""
        if rows.stop <= rows.start:
            return
        first, last = self._span.start, self._span.stop
        if last <= first:
            first = last = rows.start
        self._span = slice(min(first, rows.start), max(last, rows.stop))
        _run(self._steps, [slice(self._span.start, first), slice(last, self._span.stop)])

    def wait(self) -> None:
        if not self._all:
            self.reach(slice(0, self._num_rows))
            self._all = True
            self._steps.clear()


def _run(steps: Sequence[Step], spans: Iterable[slice]) -> None:
    with torch.no_grad():
        for rows in spans:
            if rows.stop > rows.start:
                for step in steps:
                    step(rows)


def _completed(value: Any) -> Any:
    """An operation's argument, which may be a list of tensors."""
    if isinstance(value, AsyncRows):
        return complete(value)
    if isinstance(value, list | tuple):
        return [_completed(item) for item in value]
    return value


class AsyncRows(Tensor):
    """A tensor on the memory of a plain one, some of whose rows (or what is made of them) are still to come.

    What it is (shape, dtype, gradient function, ...) is known at once. Whatever reads or writes its values waits first
    and has a plain result: operations, since all of them are dispatched to `__torch_dispatch__`, and by the methods
    below what reads memory without being an operation. A Python function is not looked at (`__torch_function__`): its
    operations are.
    """

    plain: Tensor  # on the same memory, without history; not to be read before `completion` is done
    completion: Completion

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __new__(cls, plain: Tensor, completion: Completion) -> "AsyncRows":
        assert plain.is_contiguous() and not plain.requires_grad
        made: AsyncRows = torch.Tensor._make_subclass(cls, plain, False)
        made.plain, made.completion = plain, completion
        return made

    def __init__(self, plain: Tensor, completion: Completion) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:  # reads no values; autograd stores gradients so
            return asynchronous(args[0].plain.detach(), args[0].completion)
        if kwargs:
            kwargs = {name: _completed(value) for name, value in kwargs.items()}
        return func(*[_completed(value) for value in args], **(kwargs or {}))

    def wait(self) -> "AsyncRows":
        """Returns when all rows are final."""
        self.completion.wait()
        return self

    def _completed(self) -> Tensor:
        """The plain tensor, which refuses what a tensor with a gradient function refuses."""
        return complete(self).detach().requires_grad_(self.requires_grad)

    def numpy(self, *, force: bool = False) -> Any:
        return self._completed().numpy(force=force)

    def __array__(self, dtype: Any = None) -> Any:
        return self._completed().__array__(dtype)  # type: ignore[no-untyped-call]

    def tolist(self) -> Any:
        return complete(self).tolist()

    def data_ptr(self) -> int:
        return complete(self).data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return complete(self).untyped_storage()

    def __dlpack__(self, **options: Any) -> Any:
        return self._completed().__dlpack__(**options)

    def __deepcopy__(self, memo: Any) -> Any:
        if not self.is_leaf:
            return super().__deepcopy__(memo)  # type: ignore[no-untyped-call]  # refuses
        return copy.deepcopy(self._completed(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._completed().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return repr(self._completed())


def asynchronous(plain: Tensor, completion: Completion | None) -> Tensor:
    """A result on which steps of `completion` still work; where nothing is pending, the plain tensor itself."""
    return plain if completion is None or completion.done else AsyncRows(plain, completion)


def split(x: Tensor) -> tuple[Tensor, Completion | None]:
    """For operations that work row by row: the plain tensor, not waited for, and what it waits for, if anything.

    The plain tensor has no history, so this and `complete` are for the inside of autograd functions.
    """
    if not isinstance(x, AsyncRows):
        return x, None
    return x.plain, None if x.completion.done else x.completion


def complete(x: Tensor) -> Tensor:
    """The plain tensor, all of whose rows are final."""
    if not isinstance(x, AsyncRows):
        return x
    x.completion.wait()
    return x.plain


def by_rows(completion: Completion | None, num_rows: int, step: Step) -> None:
    """Does a step on all rows: at once, or where some are pending, as these become final."""
    if completion is None:
        step(slice(0, num_rows))
    else:
        completion.do(step)


class RowSum:
    """A sum over rows, to which the shares of some rows after others are added."""

    def __init__(self, total: Tensor | None = None) -> None:
        """`total`: zeros, where a tensor must be there before any share; else the first share is taken over."""
        self.total, self._started = total, False

    def add(self, share: Tensor) -> None:
        if self._started:
            assert self.total is not None
            self.total.add_(share)
        elif self.total is None:
            self.total = share
        else:
            self.total.copy_(share)
        self._started = True


def wait_in_backward(completion: Completion) -> None:
    """Has the running backward pass wait at its end, also where nobody has read what is pending."""
    torch.autograd.Variable._execution_engine.queue_callback(completion.wait)
