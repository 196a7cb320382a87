"""Folders whose manifests say what their files hold: as of somebody who writes a wrong folder, not of damage."""

import json
from pathlib import Path

import numpy as np

from weft.graph.files import DIGEST, manifest_digest, sha256_of


def reseal(folder: Path) -> None:
    """Makes a folder's manifest, and that of a partition whose part it is, agree with the files."""
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    for name, entry in manifest["arrays"].items():
        array = np.load(folder / f"{name}.npy")
        digest = sha256_of(folder / f"{name}.npy")
        entry |= {"shape": list(array.shape), "dtype": array.dtype.str, "sha256": digest}
    manifest[DIGEST] = manifest_digest(manifest)
    file.write_text(json.dumps(manifest))
    above = folder.parent / "manifest.json"
    if manifest["weft"] == "part" and above.exists():
        whole = json.loads(above.read_text())
        whole["part_manifests"][manifest["part"]] = sha256_of(file)
        whole[DIGEST] = manifest_digest(whole)
        above.write_text(json.dumps(whole))
