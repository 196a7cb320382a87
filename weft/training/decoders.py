"""Decoders: what the model's rows of two vertices say of the pair."""

from typing import Protocol

import torch
from torch import Tensor, nn

from weft.errors import UserError
from weft.training.settings import LinkConfig


class Decoder(Protocol):
    by_relation: bool  # whether a pair's score depends on its relation
    pair_numbers: int  # that `grid` holds of each pair, beside its score

    def __call__(self, heads: Tensor, tails: Tensor, relations: Tensor | None) -> Tensor:
        """Scores of pairs, [P], from rows [P, D]; edges u -> v have head u and tail v."""
        ...

    def grid(self, heads: Tensor, tails: Tensor, relation: int | None) -> Tensor:
        """Scores of every pair of a head and a tail, [H, T], from rows [H, D] and [T, D]."""
        ...

    def scaled(self, scores: Tensor, width: int) -> Tensor:
        """Scores as the loss takes them: about 1 at the start, whatever the width."""
        ...


class Dot:
    """The product of the two rows, the same in both directions."""

    by_relation, pair_numbers = False, 0

    def __call__(self, heads: Tensor, tails: Tensor, relations: Tensor | None) -> Tensor:
        scores: Tensor = (heads * tails).sum(1)
        return scores

    def grid(self, heads: Tensor, tails: Tensor, relation: int | None) -> Tensor:
        return heads @ tails.T

    def scaled(self, scores: Tensor, width: int) -> Tensor:
        scaled: Tensor = scores / width**0.5
        return scaled


class DistMult(nn.Module):
    """The product of the two rows, each column weighed by the pair's relation; it begins as a plain product."""

    by_relation, pair_numbers = True, 0

    def __init__(self, num_relations: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_relations, width))

    def forward(self, heads: Tensor, tails: Tensor, relations: Tensor | None) -> Tensor:
        assert relations is not None
        scores: Tensor = (heads * self.weight[relations] * tails).sum(1)
        return scores

    def grid(self, heads: Tensor, tails: Tensor, relation: int | None) -> Tensor:
        assert relation is not None
        return (heads * self.weight[relation]) @ tails.T

    def scaled(self, scores: Tensor, width: int) -> Tensor:
        scaled: Tensor = scores / width**0.5
        return scaled


class PairMLP(nn.Module):
    """Two layers on the rows of both ends, their product, and what the pair itself has."""

    by_relation = False

    def __init__(self, width: int, num_out: int = 1, num_features: int = 0) -> None:
        super().__init__()
        self.pair_numbers = 5 * width  # both rows, their product, and the hidden row before and after it is cut
        self.hidden = nn.Linear(3 * width + num_features, width)
        self.out = nn.Linear(width, num_out)

    def rows(self, heads: Tensor, tails: Tensor, features: Tensor | None = None) -> Tensor:
        """[P, num_out]."""
        parts = [heads, tails, heads * tails, *([] if features is None else [features])]
        together = torch.cat([part.to(self.hidden.weight.dtype) for part in parts], 1)
        out: Tensor = self.out(self.hidden(together).relu())
        return out

    def forward(self, heads: Tensor, tails: Tensor, relations: Tensor | None) -> Tensor:
        return self.rows(heads, tails).squeeze(1)

    def grid(self, heads: Tensor, tails: Tensor, relation: int | None) -> Tensor:
        pairs = heads.repeat_interleave(len(tails), 0), tails.repeat(len(heads), 1)
        return self.rows(*pairs).view(len(heads), len(tails))

    def scaled(self, scores: Tensor, width: int) -> Tensor:
        return scores


def add_decoder(model: nn.Module, config: LinkConfig, num_relations: int, width: int, graph_name: str) -> Decoder:
    """The decoder of a run; one with weights becomes a part of the model, which learns and saves them."""
    if config.decoder == "dot":
        return Dot()
    if config.decoder == "mlp":
        model.decoder = PairMLP(width)
    else:
        if not num_relations:
            raise UserError(
                f"link.decoder=distmult has weights for each relation, and the edges of {graph_name} have none: use "
                "link.decoder=dot or mlp, or ingest relations"
            )
        model.decoder = DistMult(num_relations, width)
    return model.decoder
