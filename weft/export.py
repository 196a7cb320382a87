"""Predictions and outputs on disk, under the ids that the user's own files gave."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from weft.disk import Claim, writing
from weft.disk.output import check_replaceable
from weft.errors import UserError
from weft.graph.files import write_npy
from weft.graph.times import Moment
from weft.outputs import Outputs, What
from weft.results import Run

FORMATS = (".parquet", ".csv", ".npy")


def write_outputs(
    run: Path,
    out: Path,
    trust: bool = False,
    overwrite: bool = False,
    what: str = "outputs",
    at: Moment | None = None,
) -> int:
    """Writes a row for each vertex, or labelled edge, and returns how many; the file appears whole or not at all."""
    return len(write_made(lambda: Run(run).outputs(trust, cast(What, what), at), out, what, overwrite).ids)


def write_made(make: Callable[[], Outputs], out: Path, what: str, overwrite: bool = False) -> Outputs:
    """Writes what `make` returns, which it does only when there is a place for it."""
    with Claim(check_format(out), check_replaceable if overwrite else None) as claim:
        outputs = make()
        with writing(out):
            if out.suffix == ".npy":
                write_npy(claim.temporary, outputs.array(what))
            else:
                write_table(outputs.table(what), out, claim.temporary)
        claim.publish()
    return outputs


def check_format(out: Path) -> Path:
    """Refuses a file that cannot be written, before any work."""
    if out.suffix not in FORMATS:
        raise UserError(f"{out} has none of the endings {', '.join(FORMATS)}: the ending chooses the format")
    if not out.parent.exists():
        raise UserError(f"{out.parent} does not exist: make the folder first")
    return out


def write_table(table: pa.Table, out: Path, temporary: Path) -> None:
    """A table in the format that the ending of `out` names."""
    if out.suffix == ".parquet":
        pa.parquet.write_table(table, temporary)
    else:
        pa.csv.write_csv(table, temporary)
