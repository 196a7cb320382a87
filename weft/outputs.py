"""What a model says of vertices or edges: its outputs, and what follows from them, as arrays and as a table."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

import numpy as np
import pyarrow as pa
import torch

from weft.errors import UserError, unknown
from weft.graph.files import Array
from weft.graph.vertexdata import SPLITS, Predicted

What = Literal["outputs", "predictions", "probabilities", "embeddings"]
WHAT: tuple[str, ...] = get_args(What)
NO_PROBABILITIES = "the run learned numbers, and there are no probabilities of them: ask for predictions"


def check_what(what: str, task: str, numbers: Callable[[], bool]) -> None:
    """Refuses what a run of this `train.task` has no such thing of. `numbers`: whether it learned numbers."""
    if what not in WHAT:
        raise unknown("kind of output", what, WHAT)
    if task == "links" and what in ("predictions", "probabilities"):
        raise UserError(f"the run learned which edges exist and has no {what} of vertices: ask for embeddings")
    if what == "probabilities" and numbers():
        raise UserError(NO_PROBABILITIES)


@dataclass(frozen=True)
class Outputs:
    """A row for every vertex, in the order of the graph's vertices, and what is known of the vertex.

    Of a run that learns labels of edges, a row for every edge of its table, in the order of the table.
    """

    ids: Array  # [N] as in the user's own files; [N, 2] of edges, their sources and destinations
    values: Array  # float [N, C]: a column per class, label or number; of embeddings, the rows that the model gives
    class_names: tuple[str, ...] | None = None  # of classes, labels or numbers
    predicted: Predicted = "class"  # what columns stand for
    targets: Array | None = None  # int [N], or [N, C] of 0 and 1, -1: unknown; float of numbers, NaN: unknown
    splits: Array | None = None  # [N] train, val, test or empty
    id_name: str = "id"  # what the user's own files call ids
    types: Array | None = None  # [N] the name of each vertex' type, where there are several

    def __repr__(self) -> str:
        of = "vertices" if self.ids.ndim == 1 else "edges"
        return f"Outputs({len(self.ids):,} {of}, {self.values.shape[1]} columns)"

    @property
    def predictions(self) -> Array:
        """The likeliest class of each vertex, int [N]; with several labels, bool [N, C]; numbers as targets are."""
        self._refuse_embeddings("predictions")
        if self.predicted == "numbers":
            return self.values[:, 0] if self.values.shape[1] == 1 else self.values
        found: Array = self.values > 0 if self.predicted == "labels" else self.values.argmax(1)
        return found

    @property
    def probabilities(self) -> Array:
        """[N, C], rows that sum to 1; with several labels per vertex, each column's own."""
        self._refuse_embeddings("probabilities")
        if self.predicted == "numbers":
            raise UserError(NO_PROBABILITIES)
        logits = torch.from_numpy(self.values).double()
        shares = logits.sigmoid() if self.predicted == "labels" else logits.softmax(1)
        return shares.to(torch.float32).numpy()

    @property
    def accuracy(self) -> float | None:
        """The share of known targets that are predicted; None where none is known, and of numbers."""
        if self.targets is None or not self._of_classes:
            return None
        known = self.targets >= 0
        return float((self.predictions == self.targets)[known].mean()) if known.any() else None

    @property
    def class_counts(self) -> dict[str, int]:
        """How many vertices each class was predicted for, by name, the largest first; empty for other rows."""
        if not self._of_classes:
            return {}
        found = self.predictions
        counts = found.sum(0) if self.predicted == "labels" else np.bincount(found, minlength=self.values.shape[1])
        pairs = zip(self._names, counts.tolist(), strict=True)
        return dict(sorted(pairs, key=lambda pair: -pair[1]))

    def pick(self, rows: slice | Array) -> Self:
        """Some of the vertices."""
        return replace(
            self,
            ids=self.ids[rows],
            values=self.values[rows],
            targets=None if self.targets is None else self.targets[rows],
            splits=None if self.splits is None else self.splits[rows],
            types=None if self.types is None else self.types[rows],
        )

    def array(self, what: str) -> Array:
        """The rows alone, in the order of the vertices."""
        return {"predictions": lambda: self.predictions, "probabilities": lambda: self.probabilities}.get(
            what, lambda: self.values
        )()

    def table(self, what: str) -> pa.Table:
        """The ids of each vertex or edge, what is asked for, target and split where the graph or the table has them."""
        columns = {} if self.predicted == "embedding" else self._predicted()
        if what != "predictions" and self.predicted != "numbers":
            asked = "embeddings" if self.predicted == "embedding" else what
            prefix = {"probabilities": "probability", "embeddings": "embedding"}.get(asked, "output")
            names = self._names if self._of_classes else tuple(map(str, range(self.values.shape[1])))
            rows = self.array(what)
            columns |= {f"{prefix}_{name}": pa.array(rows[:, k]) for k, name in enumerate(names)}
        if self.targets is not None:
            columns |= self._known(self.targets)
        if self.splits is not None:
            columns["split"] = pa.array(self.splits, mask=self.splits == "")
        if self.ids.ndim == 2:
            ends = {name: pa.array(self.ids[:, end]) for end, name in enumerate(("source", "destination"))}
            return pa.table({**ends, **columns})
        if self.types is not None:
            columns = {"type": pa.array(self.types), **columns}
        return pa.table({"id" if self.id_name in columns else self.id_name: pa.array(self.ids), **columns})

    @property
    def _names(self) -> tuple[str, ...]:
        return self.class_names or tuple(map(str, range(self.values.shape[1])))

    @property
    def _of_classes(self) -> bool:
        return self.predicted in ("class", "labels")

    @property
    def _endings(self) -> tuple[str, ...]:
        """What tells the columns of several numbers apart."""
        single = self.class_names is None and self.values.shape[1] == 1
        return ("",) if single else tuple(f"_{name}" for name in self._names)

    def _predicted(self) -> dict[str, pa.Array]:
        """The predicted class and its name where it has one, or one yes/no per label, or numbers."""
        found = self.predictions
        if self.predicted == "numbers":
            return {f"prediction{name}": pa.array(self.values[:, k]) for k, name in enumerate(self._endings)}
        if self.predicted == "labels":
            return {f"label_{name}": pa.array(found[:, k]) for k, name in enumerate(self._names)}
        columns = {"prediction": pa.array(found)}
        if self.class_names is not None:
            columns["class"] = pa.array(np.array(self.class_names)[found])
        return columns

    def _known(self, targets: Array) -> dict[str, pa.Array]:
        """The target as a number and its name where it has one, empty where it is unknown; or one per label."""
        if targets.dtype.kind == "f":
            return self._known_numbers(targets.reshape(len(targets), -1))
        if targets.ndim == 2:
            names = self.class_names or range(targets.shape[1])
            return {
                f"target_{name}": pa.array(targets[:, k] > 0, mask=targets[:, k] < 0) for k, name in enumerate(names)
            }
        unknown_target = targets < 0
        columns = {"target": pa.array(targets, mask=unknown_target)}
        if self.class_names is not None:
            named = np.array(self.class_names)[np.where(unknown_target, 0, targets)]
            columns["target_class"] = pa.array(named, mask=unknown_target)
        return columns

    def _known_numbers(self, targets: Array) -> dict[str, pa.Array]:
        """Empty where they are unknown."""
        several = tuple(f"_{k}" for k in range(targets.shape[1])) if targets.shape[1] > 1 else ("",)
        endings = self._endings if self.predicted == "numbers" else several
        return {
            f"target{name}": pa.array(targets[:, k], mask=np.isnan(targets[:, k])) for k, name in enumerate(endings)
        }

    def _refuse_embeddings(self, what: str) -> None:
        if self.predicted == "embedding":
            raise UserError(f"these are rows of vertices, not of classes: there are no {what} in them")


def split_names(codes: Array) -> Array:
    """Names of splits from 0: none, 1: train, 2: val, 3: test."""
    names: Array = np.array(["", *SPLITS])[codes]
    return names
