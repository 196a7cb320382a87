"""Predictions and outputs on disk, under the ids that the user's own files gave."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from weft.errors import UserError
from weft.run import Outputs, Run

FORMATS = (".parquet", ".csv", ".npy")


def write_outputs(run: Path, out: Path) -> int:
    """Writes one row per vertex and returns how many there are."""
    if out.suffix not in FORMATS:
        raise UserError(f"{out} has none of the endings {', '.join(FORMATS)}: the ending chooses the format")
    if not out.parent.exists():
        raise UserError(f"{out.parent} does not exist: make the folder first")
    outputs = Run(run).outputs()
    partial = out.with_name(f".{out.name}.partial")
    if out.suffix == ".npy":
        with partial.open("wb") as file:
            np.save(file, outputs.values)
    elif out.suffix == ".parquet":
        pa.parquet.write_table(_table(outputs), partial)
    else:
        pa.csv.write_csv(_table(outputs), partial)
    partial.replace(out)
    return len(outputs.ids)


def _table(outputs: Outputs) -> pa.Table:
    """id, prediction (or one yes/no per label), the class's name where it has one, and the raw outputs."""
    names = outputs.class_names or tuple(str(number) for number in range(outputs.values.shape[1]))
    columns = {"id": pa.array(outputs.ids)}
    if outputs.multi_label:
        columns |= {f"label_{name}": pa.array(outputs.values[:, k] > 0) for k, name in enumerate(names)}
    else:
        predicted = outputs.values.argmax(1)
        columns["prediction"] = pa.array(predicted)
        if outputs.class_names is not None:
            columns["class"] = pa.array(np.array(names)[predicted])
    return pa.table(columns | {f"output_{name}": pa.array(outputs.values[:, k]) for k, name in enumerate(names)})
