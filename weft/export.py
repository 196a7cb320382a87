"""Predictions and outputs on disk, under the ids that the user's own files gave."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from weft.errors import UserError
from weft.run import Run

FORMATS = (".parquet", ".csv", ".npy")


def write_outputs(run: Path, out: Path) -> int:
    """One row per vertex: id, prediction, outputs. Returns how many."""
    if out.suffix not in FORMATS:
        raise UserError(f"{out} has none of the endings {', '.join(FORMATS)}: the ending chooses the format")
    if not out.parent.exists():
        raise UserError(f"{out.parent} does not exist: make the folder first")
    ids, outputs = Run(run).outputs()
    partial = out.with_name(f".{out.name}.partial")
    if out.suffix == ".npy":
        with partial.open("wb") as file:
            np.save(file, outputs)
    else:
        columns = {"id": pa.array(ids), "prediction": pa.array(outputs.argmax(1))}
        columns |= {f"output_{column}": pa.array(outputs[:, column]) for column in range(outputs.shape[1])}
        table = pa.table(columns)
        if out.suffix == ".parquet":
            pa.parquet.write_table(table, partial)
        else:
            pa.csv.write_csv(table, partial)
    partial.replace(out)
    return len(ids)
