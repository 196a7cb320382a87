"""Rows that come later: work on the others goes on meanwhile, forward and backward.

Forward, an aggregate's first rows, those without remote in-edges, are final before anything has arrived. A late tensor
says so; products and activations that are handed one do their work on the rows that are ready and put off the rest,
which happens when the tensor is settled, at the next aggregation: with each arrival, on the rows that are final then,
while others still travel. Where nothing has to arrive, the rows that leave first are the ones that are ready, and the
rest is done once these are on their way, in the order in which others wait for it. Backward, the gradient of rows that
others have read is complete only when theirs has come home; the product that takes it begins with the rows that nobody
else read, and goes on with those that are complete after each arrival.

Only code that knows of late tensors may be handed one, so layers say where that is so (`Layer.late_output`, `alone`).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

Arrival = tuple[Callable[[], object], slice]  # waits for rows, and takes them in; the rows that are final then

_NAME, _ALONE, _HANDED = "_weft_late", "_weft_alone", "_weft_handed"


class Late:
    """What is still to be done for the rows, of `num_rows`, that are not in the span `ready`."""

    def __init__(self, ready: slice, num_rows: int, arrivals: Sequence[Arrival] = ()) -> None:
        """`arrivals`: what is waited for, one after another, and which rows are final after each."""
        self.ready = ready
        self.arrives = bool(arrivals)  # else the rest is merely put off
        self._num_rows, self._arrivals = num_rows, arrivals
        self._steps: list[Callable[[slice], object]] = []
        self._done = False

    def work(self, on: Callable[[slice], object]) -> None:
        """On the rows that are ready now, on the others when they are."""
        on(self.ready)
        self.then(on)

    def then(self, step: Callable[[slice], object]) -> None:
        """On the rows that are not ready, when they are."""
        self._steps.append(step)

    def reach(self, rows: slice) -> None:
        """What was put off is done for some rows, and for those between them and the ones that are ready."""
        assert not self.arrives, "rows that must arrive are waited for in their order"
        if rows.stop <= rows.start:
            return
        first, last = self.ready.start, self.ready.stop
        if last <= first:
            first = last = rows.start
        self.ready = slice(min(first, rows.start), max(last, rows.stop))
        self._do(slice(self.ready.start, first))
        self._do(slice(last, self.ready.stop))

    def settle(self) -> None:
        self._done = True
        if not self.arrives:
            self.reach(slice(0, self._num_rows))
        for arrive, rows in self._arrivals:
            arrive()
            self._do(rows)
        # These hold tensors that hold this: memory that is let go of in circles comes back late.
        self._steps, self._arrivals = [], ()

    def _do(self, rows: slice) -> None:
        if rows.stop > rows.start:
            with torch.no_grad():
                for step in self._steps:
                    step(rows)

    @property
    def settled(self) -> bool:
        return self._done


def _nothing() -> None: ...


def late(x: Tensor) -> Late | None:
    """What is still to be done for this tensor, if anything is."""
    found: Late | None = getattr(x, _NAME, None)
    return None if found is None or found.settled else found


def mark(x: Tensor, what: Late | None) -> Tensor:
    if what is not None:
        setattr(x, _NAME, what)
    return x


def settle(*tensors: Tensor) -> None:
    for tensor in tensors:
        found = late(tensor)
        if found is not None:
            found.settle()


def alone(x: Tensor) -> Tensor:
    """Promises that x, a product, goes into the next aggregation and nowhere else: its gradient may come late."""
    setattr(x, _ALONE, True)
    return x


def is_alone(x: Tensor) -> bool:
    return getattr(x, _ALONE, False)


# -- backward --------------------------------------------------------------------------------------------------

Homecoming = tuple[Callable[[], object], Sequence[slice]]  # waits for gradients; the rows that are complete then

_gradients: dict[int, Sequence[Homecoming]] = {}  # by address


def expect(grad: Tensor, arrivals: Sequence[Homecoming]) -> None:
    """Rows of this gradient are complete one after another, as whoever takes it waits; all of them in the end."""
    _gradients[grad.data_ptr()] = arrivals


def rows_in_turn(grad: Tensor) -> Iterator[slice]:
    """All rows of a gradient in slices; those that come late are waited for last."""
    for arrive, spans in _gradients.pop(grad.data_ptr(), [(_nothing, [slice(0, grad.shape[0])])]):
        arrive()
        yield from spans


def hand_over(x: Tensor) -> None:
    """Promises that x goes into one layer and nowhere else: all of its gradient comes from there."""
    setattr(x, _HANDED, True)


# A function that can do its share of the backward pass row by row has, on the object that autograd gives it, `early`:
# a function of that object, the gradient, and the rows to work on, which may write to the gradient.


def maker_of(x: Tensor) -> Any:
    """The function that made x, if it can work on its gradient as rows of it are complete; else None."""
    return x.grad_fn if getattr(x, _HANDED, False) and hasattr(x.grad_fn, "early") else None


def done_early(maker: Any, grad: Tensor | None, rows: slice) -> None:
    """Has a maker work on rows of a gradient, all of which it is handed in the end, before autograd does so."""
    if maker is not None and grad is not None:
        maker.early(maker, grad, rows)
        maker.done_early = grad.data_ptr()


def was_early(ctx: Any, grad: Tensor) -> bool:
    """Whether this gradient has been worked on already; asked once."""
    address, ctx.done_early = getattr(ctx, "done_early", None), None
    assert address in (None, grad.data_ptr()), "rows that were handed over have been read elsewhere, too"
    return address is not None


def nothing_is_late() -> None:
    """That every late gradient has been taken: else somebody has read rows that were not there."""
    forgotten = len(_gradients)
    _gradients.clear()
    assert forgotten == 0, f"{forgotten} late gradients were read by code that does not wait for them"
