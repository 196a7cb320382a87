"""Runs METIS on a folder of arrays (see metis.py). A script of its own, so that it imports no torch."""

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pymetis

Integers = np.ndarray[Any, np.dtype[Any]]
UNEVEN_PER_MILLE = 30  # METIS' ufactor: how much a part may exceed the mean


def main() -> None:
    folder, (parts, seed, tries) = Path(sys.argv[1]), map(int, sys.argv[2:])
    dtype = pymetis.zero_copy_dtype()

    def read(name: str) -> Integers:
        array: Integers = np.load(folder / f"{name}.npy", allow_pickle=False)
        if array.size and int(array.max()) > np.iinfo(dtype).max:
            raise SystemExit(f"the graph is too large for this METIS, built with {dtype} indices")
        array = array.astype(dtype, copy=False)
        return array

    options = pymetis.Options(seed=seed % 2**31, ufactor=UNEVEN_PER_MILLE, ncuts=tries)
    result = pymetis.part_graph(
        parts,
        pymetis.CSRAdjacency(read("indptr"), read("indices")),
        vweights=read("weight"),
        eweights=read("edge_weight"),
        recursive=False,
        options=options,
    )
    np.save(folder / "owner.npy", np.asarray(result.vertex_part, dtype=np.int32))


if __name__ == "__main__":
    # By its path: an import of the package would import torch.
    runpy.run_path(str(Path(__file__).parents[1] / "launch" / "parent.py"))["end_with_parent"]()
    main()
