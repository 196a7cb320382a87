"""What a run of links says of pairs of vertices: scores of given pairs, and the best candidates for given vertices.

Both work on the rows that the model gives vertices, block by block: no more pairs are held at once than a block's.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from weft.disk import Claim, writing
from weft.disk.output import check_replaceable
from weft.errors import UserError
from weft.export import check_format, write_table
from weft.graph import open_graph
from weft.graph.csr import CSR, row_numbers
from weft.graph.edgelist import read_npy
from weft.graph.files import Array
from weft.graph.ids import IdMap
from weft.graph.nodefile import read_node_file
from weft.graph.times import Moment, time_of
from weft.launch.trained import load_decoder
from weft.partitioning import load_shard
from weft.prepare import VertexNames, parts_folder, vertex_names
from weft.results import Run
from weft.training.decoders import Decoder
from weft.training.given import find_relation, read_given_edges
from weft.training.modelshape import read_shape
from weft.training.runfolder import RunFolder

BLOCK_NUMBERS = 1 << 24  # of rows of pairs, and of scores, that are held at a time
CANDIDATES = 1 << 16  # that are scored at a time


@dataclass(frozen=True)
class Scorer:
    """A run of links with the rows of its graph's vertices."""

    rows: Tensor  # [N, D], in the graph's order
    decoder: Decoder
    names: VertexNames
    ids: IdMap
    num_relations: int  # of the graph
    learned: tuple[str | int, ...]  # the relations that the run learned; empty: all

    def relation(self, name: str | None) -> int | None:
        """The number of the relation that is asked about; of a run that learned one, that one."""
        if name is None and len(self.learned) == 1:
            name = str(self.learned[0])
        known = self.names.relation_names
        if name is not None:
            return find_relation(name, self.num_relations, known)
        if self.decoder.by_relation:
            raise UserError(
                "the run's decoder scores a pair by its relation: name one with --relation"
                + (f" ({', '.join(known)})" if known else "")
            )
        return None


def open_scorer(run: Run, trust: bool = False, at: Moment | None = None) -> Scorer:
    """The rows of the vertices as `weft export` writes them, now or at a time, and what scores pairs of them."""
    config = run.config
    if config.train.task != "links":
        raise UserError(
            f"{run.path} learned labels of {config.train.task}, and pairs are scored by runs that learned which edges "
            "exist: train with train.task=links"
        )
    outputs, names = run.outputs(trust, at=at), vertex_names(config, run.path)
    decoder = load_decoder(run.path, run.given)
    ids, rows = IdMap(names.ids_of_all(), "the graph's ids"), torch.from_numpy(outputs.values)
    num_relations = read_shape(RunFolder(run.path).checkpoints).num_relations
    return Scorer(rows, decoder, names, ids, num_relations, tuple(config.link.relations or ()))


# -- scores of given pairs -----------------------------------------------------------------------------------------


def score_pairs(scorer: Scorer, heads: Tensor, tails: Tensor, relations: Tensor | None = None) -> Tensor:
    """What the decoder says of pairs of vertices, [P]; heads, tails, relations: int64 [P]."""
    rows, found = scorer.rows, torch.empty(len(heads), dtype=scorer.rows.dtype)
    step = max(1, BLOCK_NUMBERS // (4 * max(1, rows.shape[1])))
    with torch.no_grad():
        for start in range(0, len(heads), step):
            at = slice(start, start + step)
            of = None if relations is None else relations[at]
            found[at] = scorer.decoder(rows[heads[at]], rows[tails[at]], of)
    return found


def write_pair_scores(
    run: Run,
    pairs: Path,
    out: Path,
    relation: str | None = None,
    trust: bool = False,
    overwrite: bool = False,
    at: Moment | None = None,
) -> int:
    """Writes the pairs of a file with their scores, in its order; returns how many there are."""

    def make() -> pa.Table:
        scorer = open_scorer(run, trust, at)
        known = scorer.names.relation_names
        given = read_given_edges(pairs, scorer.ids, scorer.num_relations, known)
        of = given.relations
        if of is None and (one := scorer.relation(relation)) is not None:
            of = torch.full_like(given.heads, one)
        scores = score_pairs(scorer, given.heads, given.tails, of)
        columns = {"source": scorer.ids.ids[given.heads.numpy()], "destination": scorer.ids.ids[given.tails.numpy()]}
        if of is not None:
            columns["relation"] = _relation_names(of, known)
        return pa.table({**columns, "score": scores.numpy()})

    return _write(make, out, overwrite)


# -- the best candidates -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edges:
    """The graph's edges as they lie: the in-edges of the vertices `ids`, whose sources are `ids[column]`."""

    csr: CSR
    ids: Tensor  # int64 [N], global
    before: float | None = None  # the time from which on edges are not there yet; None: all are

    def pairs(self, relation: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Sources and destinations of edges, of one relation if that is given, some at a time."""
        csr = self.csr
        tails, step = row_numbers(csr.indptr), BLOCK_NUMBERS
        for start in range(0, csr.num_edges, step):
            at = slice(start, start + step)
            heads, ends = self.ids[csr.indices[at].long()], self.ids[tails[at]]
            there = torch.ones(len(heads), dtype=torch.bool)
            if relation is not None:
                assert csr.relation is not None
                there &= csr.relation[at] == relation
            if self.before is not None:
                assert csr.time is not None, "vertices were looked at at a time"
                there &= csr.time[at] < self.before
            yield heads[there], ends[there]


def open_edges(run: Run, at: Moment | None = None) -> Edges:
    """The edges of the graph that a run was trained on, from the whole graph or its parts; or those before a time."""
    before = None if at is None else time_of(at, "the time of candidates")
    parts = parts_folder(run.config, run.path)
    if parts is None:
        adjacency = open_graph(run.config.data).adjacency
        return Edges(adjacency, torch.arange(adjacency.num_rows), before)
    shard = load_shard(parts, 0, 1)
    return Edges(shard.local, shard.global_ids, before)


@dataclass(frozen=True)
class Candidates:
    """For each given vertex its best candidates, best first: rows of `given` with their place."""

    given: Tensor  # int64 [C], of the given vertices
    candidate: Tensor  # int64 [C]
    rank: Tensor  # int64 [C], from 1 on
    score: Tensor  # [C]


def best_candidates(
    scorer: Scorer,
    edges: Edges,
    given: Tensor,
    count: int,
    side: str = "destinations",
    relation: int | None = None,
    known: bool = False,
) -> Candidates:
    """The `count` vertices that score best with each given one: as destinations of edges from it, or as their sources.

    Left out are the vertex itself and, unless `known`, those that it has an edge with already (of the relation, where
    one is given). Candidates for a relation are vertices that have that end of an edge of it. Of equal scores the
    vertex that comes first in the graph is better.
    """
    forward = side == "destinations"
    pool = _pool(edges, relation, forward, len(scorer.rows))
    taken = _taken(edges, relation, forward, given, known)
    at_once = max(1, min(len(given), BLOCK_NUMBERS // (CANDIDATES * (1 + scorer.decoder.pair_numbers))))
    found = []
    for start in range(0, len(given), at_once):
        some = given[start : start + at_once]
        scores, places = _best_of(scorer, some, pool, taken, count, forward, relation)
        row, rank = torch.isfinite(scores).nonzero(as_tuple=True)
        found.append(Candidates(some[row], pool[places[row, rank]], rank + 1, scores[row, rank]))
    if not found:
        nothing = torch.empty(0, dtype=torch.int64)
        return Candidates(nothing, nothing, nothing, scorer.rows.new_empty(0))
    return Candidates(*(torch.cat([getattr(one, name) for one in found]) for name in Candidates.__annotations__))


def _pool(edges: Edges, relation: int | None, forward: bool, num_nodes: int) -> Tensor:
    """The vertices that may be candidates, int64, ascending."""
    if relation is None:
        return torch.arange(num_nodes)
    able = torch.zeros(num_nodes, dtype=torch.bool)
    for heads, tails in edges.pairs(relation):
        able[tails if forward else heads] = True
    return able.nonzero().squeeze(1)


def _taken(edges: Edges, relation: int | None, forward: bool, given: Tensor, known: bool) -> tuple[Tensor, Tensor]:
    """The pairs (given vertex, candidate) that are left out, by given vertex ascending."""
    mine = [torch.unique(given)]
    others = [mine[0]]
    for heads, tails in () if known else edges.pairs(relation):
        ends = (heads, tails) if forward else (tails, heads)
        asked = torch.isin(ends[0], mine[0])
        mine.append(ends[0][asked])
        others.append(ends[1][asked])
    vertex, order = torch.cat(mine).sort(stable=True)
    return vertex, torch.cat(others)[order]


def _best_of(
    scorer: Scorer,
    given: Tensor,
    pool: Tensor,
    taken: tuple[Tensor, Tensor],
    count: int,
    forward: bool,
    relation: int | None,
) -> tuple[Tensor, Tensor]:
    """Scores and places in `pool` of the best candidates of some vertices, best first, [G, count or fewer]."""
    rows, ends = scorer.rows, torch.searchsorted(taken[0], torch.stack([given, given + 1], 1))
    numbers = torch.arange(len(given)).repeat_interleave(ends[:, 1] - ends[:, 0])
    left_out = torch.cat([taken[1][first:last] for first, last in ends.tolist()])
    best = rows.new_empty(len(given), 0)
    places = torch.empty(len(given), 0, dtype=torch.int64)
    for start in range(0, len(pool), CANDIDATES):
        block = pool[start : start + CANDIDATES]
        pair = (rows[given], rows[block])
        with torch.no_grad():
            scores = scorer.decoder.grid(*pair, relation) if forward else scorer.decoder.grid(*pair[::-1], relation).T
        scores = scores.contiguous()
        place = torch.searchsorted(block, left_out).clamp(max=len(block) - 1)
        here = block[place] == left_out
        scores[numbers[here], place[here]] = -torch.inf
        both = torch.cat([best, scores], 1)
        where = torch.cat([places, torch.arange(start, start + len(block)).expand(len(given), -1)], 1)
        order = _first_of_largest(both, count)
        best, places = both.gather(1, order), where.gather(1, order)
    return best, places


def _first_of_largest(scores: Tensor, count: int) -> Tensor:
    """The columns of the largest numbers of each row, largest first, of equal ones the first first."""
    count = min(count, scores.shape[1])
    largest, order = scores.topk(count, 1)
    least = largest[:, -1:]
    # Which of several equal ones `topk` takes is not said: rows that have any are sorted whole.
    alike = (largest[:, 1:] == largest[:, :-1]) & torch.isfinite(largest[:, 1:])
    unclear = alike.any(1) | (torch.isfinite(least[:, 0]) & ((scores >= least).sum(1) > count))
    if bool(unclear.any()):
        order[unclear] = torch.sort(scores[unclear], dim=1, descending=True, stable=True)[1][:, :count]
    return order


def write_candidates(
    run: Run,
    out: Path,
    count: int,
    of: Path | None = None,
    side: str = "destinations",
    relation: str | None = None,
    known: bool = False,
    trust: bool = False,
    overwrite: bool = False,
    at: Moment | None = None,
) -> int:
    """Writes the best candidates of the vertices that a file names (None: of all), in its order; returns how many.

    `at`: as they were at a time, from which on no edge is known.
    """

    def make() -> pa.Table:
        scorer = open_scorer(run, trust, at)
        number, ids = scorer.relation(relation), scorer.ids.ids
        given = _given(scorer, of, number, side)
        found = best_candidates(scorer, open_edges(run, at), given, count, side, number, known)
        ends = [ids[found.given.numpy()], ids[found.candidate.numpy()]]
        source, destination = ends if side == "destinations" else ends[::-1]
        columns: dict[str, Array] = {"source": source, "destination": destination}
        if number is not None:
            columns["relation"] = _relation_names(torch.full_like(found.given, number), scorer.names.relation_names)
        return pa.table({**columns, "rank": found.rank.numpy(), "score": found.score.numpy()})

    if side not in ("destinations", "sources"):
        raise UserError(f"candidates are destinations or sources, not '{side}'")
    return _write(make, out, overwrite)


def _given(scorer: Scorer, of: Path | None, relation: int | None, side: str) -> Tensor:
    """The vertices whose candidates are asked for: those that a file names, or all that an edge may lead from (to)."""
    types, ids = scorer.names.types, scorer.ids
    if types is None:
        return torch.arange(len(ids.ids)) if of is None else torch.from_numpy(_read_ids(of, ids))
    if relation is None:
        known = ", ".join(scorer.names.relation_names or ())
        raise UserError(
            "the graph has types of vertices, and candidates are of the type to which a relation leads: name one with "
            f"--relation ({known})"
        )
    kind = types.ends[relation][side == "sources"]
    span = types.span(kind)
    if of is None:
        return torch.arange(span.start, span.stop)
    given = torch.from_numpy(_read_ids(of, ids))
    wrong = (types.of(given) != kind).nonzero()
    if len(wrong):
        raise UserError(
            f"'{ids.ids[given[int(wrong[0])]]}' in {of} is not of type '{types.names[kind]}', whose candidates the "
            "relation tells: leave it out, or ask about another relation"
        )
    return given


def _read_ids(path: Path, ids: IdMap) -> Array:
    """The vertices that a file names: a table with a column of ids, or an npy file of them."""
    named = read_npy(path) if path.suffix == ".npy" else read_node_file(path, "features").ids
    if named is None:
        raise UserError(f"{path} has no column of ids: name it id")
    return ids.find(named, f"in {path}, row").astype(np.int64)


def _relation_names(numbers: Tensor, names: tuple[str, ...] | None) -> Array:
    return numbers.numpy() if names is None else np.array(names)[numbers.numpy()]


def _write(make: Callable[[], pa.Table], out: Path, overwrite: bool) -> int:
    """A table that is made when there is a place for it; the file appears whole or not at all."""
    if out.suffix == ".npy":
        raise UserError(f"{out}: pairs and their scores are a table: write .parquet or .csv")
    with Claim(check_format(out), check_replaceable if overwrite else None) as claim:
        table = make()
        with writing(out):
            write_table(table, out, claim.temporary)
        claim.publish()
    return int(table.num_rows)
