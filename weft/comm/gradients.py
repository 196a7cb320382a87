"""The sum of all gradients over the workers, in one all-reduce per dtype."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

from weft.comm.communicator import Communicator


def all_reduce_gradients(comm: Communicator, parameters: Iterable[Parameter]) -> None:
    """Replaces every gradient by its sum over the workers: one message per dtype, whatever the number of tensors.

    >>> model = torch.nn.Linear(2, 1)
    >>> with weft.init_workers() as comm:
    ...     model(torch.ones(3, 2)).sum().backward()
    ...     weft.all_reduce_gradients(comm, model.parameters())
    >>> model.bias.grad.tolist()  # with two workers that do the same: [6.0]
    [3.0]

    All workers pass the same parameters in the same order. One that has no gradient here contributes zeros and gets
    the sum. Gradients become views of one buffer that is kept between calls; parameters that require no gradient are
    left alone. Counted as "gradients": the bytes of all gradients, once per worker.
    """
    if comm.num_workers == 1:
        return
    by_dtype: dict[torch.dtype, list[Parameter]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
    for group in by_dtype.values():
        flat = _flat_buffer(comm, group)
        views = [
            piece.view_as(parameter)
            for piece, parameter in zip(torch.split(flat, [p.numel() for p in group]), group, strict=True)
        ]
        for view, parameter in zip(views, group, strict=True):
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad.data_ptr() != view.data_ptr():
                view.copy_(parameter.grad)
        comm.all_reduce(flat, "gradients", "gradients")
        for view, parameter in zip(views, group, strict=True):
            parameter.grad = view


def _flat_buffer(comm: Communicator, group: list[Parameter]) -> Tensor:
    # Keyed by identity: gradients of two models of one shape must not share memory. The length is part of the key,
    # so that a reused id can at worst find a buffer of the right size whose owner is gone.
    size = sum(p.numel() for p in group)
    key = (size, *(id(p) for p in group))
    buffer = comm.flat_gradients.get(key)
    if buffer is None or buffer.dtype != group[0].dtype:
        buffer = torch.empty(size, dtype=group[0].dtype, device=group[0].device)
        comm.flat_gradients[key] = buffer
    return buffer
