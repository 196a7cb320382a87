"""Input rows of vertices of several types: of each type a block of rows with a width of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class TypedRows:
    """One row for each of N vertices, in the block of its type.

    A model's encoder takes them to rows of one width; until then nothing is padded. Learned rows, of all types without
    features, are one block after those of the types.
    """

    types: Tensor  # int64 [N]
    places: Tensor  # int64 [N], the row of each vertex in its block
    blocks: tuple[Tensor | None, ...]  # [N_t, F_t] of each type, None where rows are learned; then the learned rows
    dtype: torch.dtype

    @classmethod
    def of(
        cls, types: Tensor, blocks: Sequence[Tensor | None], learned: Tensor | None, dtype: torch.dtype
    ) -> "TypedRows":
        """Of vertices whose rows lie in their blocks in the order of the vertices."""
        places = torch.empty_like(types, dtype=torch.int64)
        without = torch.zeros_like(types, dtype=torch.bool)
        for kind, block in enumerate(blocks):
            here = types == kind
            if block is None:
                without |= here
            else:
                places[here] = torch.arange(block.shape[0], device=types.device)
        places[without] = torch.arange(int(without.sum()), device=types.device)
        return cls(types.long(), places, (*blocks, learned), dtype)

    def __len__(self) -> int:
        return self.types.numel()

    @property
    def requires_grad(self) -> bool:
        """Whether any of them are learned."""
        return self.blocks[-1] is not None

    def detach(self) -> "TypedRows":
        """The same as constant rows: those that are learned, as they are now, lie in the blocks of their types."""
        none_learned = self.blocks[-1] is None
        blocks = [
            None if block is None and none_learned else rows.detach()
            for block, (_, rows) in zip(self.blocks, self.groups, strict=False)
        ]
        return TypedRows.of(self.types, blocks, None, self.dtype)

    def __getitem__(self, index: Tensor | slice) -> "TypedRows":
        """The rows of some vertices; blocks are shared."""
        return TypedRows(self.types[index], self.places[index], self.blocks, self.dtype)

    def first(self, count: int) -> "TypedRows":
        """The rows of the first vertices."""
        return self if count == len(self) else self[:count]

    @cached_property
    def members(self) -> tuple[Tensor, ...]:
        """For each type the numbers of its vertices among the N, int64."""
        return tuple((self.types == kind).nonzero().squeeze(1) for kind in range(len(self.blocks) - 1))

    @property
    def groups(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """For each type: the numbers of its vertices among the N, int64, and their rows, [n, F_t]."""
        found = []
        for members, block in zip(self.members, self.blocks[:-1], strict=True):
            rows = self.blocks[-1] if block is None else block
            assert rows is not None or members.numel() == 0, "vertices without features have learned rows"
            found.append((members, self._rows(rows, members)))
        return tuple(found)

    def _rows(self, block: Tensor | None, members: Tensor) -> Tensor:
        if block is None:
            return torch.empty(0, 0, dtype=self.dtype, device=self.types.device)
        places = self.places[members]
        whole = places.numel() == block.shape[0] and not block.requires_grad
        if whole and bool((places == torch.arange(block.shape[0], device=places.device)).all()):
            return block  # as it lies
        return block[places]


Rows = Tensor | TypedRows  # the input rows of a model
