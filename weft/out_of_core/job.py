"""What to partition and how."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from weft.errors import UserError, unknown
from weft.graph.edgelist import EdgeColumns
from weft.graph.preparation import FeatureChoices
from weft.graph.tables import PARQUET, TEXT, kind_of
from weft.partitioning.partitioners import AUTO, find_partitioner

LABEL_KINDS = ("classes", "numbers")
MAX_PARTS = 2**15 - 1  # owners are int16


class Job(BaseModel):
    """One partitioning; the workers get it as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    edges: tuple[Path, ...]
    parts: int
    method: str = AUTO
    seed: int = 0
    memory_bytes: int = 2 << 30  # of each worker
    passes: int = 3  # of `stream` over the vertices
    columns: EdgeColumns = EdgeColumns()
    header: bool | None = None
    features: Path | None = None  # npy, or a table whose columns are prepared
    choices: FeatureChoices = FeatureChoices()  # of the table's columns
    id_column: str | None = None
    label_columns: tuple[str, ...] = ()
    split_column: str | None = None
    vertex_time_column: str | None = None  # of the table
    labels: Path | None = None
    label_kind: str = "classes"  # or numbers: whether any is a fraction shows only when all have been read
    vertex_data: dict[str, Path] = {}  # further columns of vertices, each an npy file [N, ...]
    split: str | None = None
    num_nodes: int | None = None
    num_classes: int | None = None
    undirected: bool = False
    name: str = "graph"


def check_job(job: Job) -> None:
    find_partitioner(job.method, whole_graph=False)
    if job.label_kind not in LABEL_KINDS:
        raise unknown("label kind", job.label_kind, LABEL_KINDS)
    if not 1 <= job.parts <= MAX_PARTS:
        raise UserError(f"{job.parts} parts were asked for: edge files are cut into 1 to {MAX_PARTS} parts")
    if job.memory_bytes < 1 or job.passes < 1:
        raise UserError("memory and passes are counted from 1: give more")
    table = job.features is not None and kind_of(job.features) in (*TEXT, *PARQUET)
    columns = (job.id_column, job.split_column, job.vertex_time_column, *job.label_columns)
    if not table and (job.choices != FeatureChoices() or any(columns)):
        raise UserError("columns of a table of features are chosen, but --features is no csv or parquet file: give one")
