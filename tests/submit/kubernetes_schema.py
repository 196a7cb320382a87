"""Cuts what tests need out of Kubernetes' published schema, as the package kubernetes-validate carries it.

    pip download --no-deps kubernetes-validate==1.37.0
    python -m tests.submit.kubernetes_schema kubernetes_validate-1.37.0-py3-none-any.whl

The package unpacks to 72 MB, so it is no requirement of the tests. What is cut out, kubernetes-1.31.json, is a work of
the Kubernetes authors under the Apache License 2.0; descriptions are left out, nothing else is changed. Its strict form
refuses fields that do not exist.
"""

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCHEMA = Path(__file__).with_name("kubernetes-1.31.json")
SOURCE = "kubernetes_validate/kubernetes-json-schema/v1.31.0-local-strict/_definitions.json"
ROOTS = {
    "Job": "io.k8s.api.batch.v1.Job",
    "Service": "io.k8s.api.core.v1.Service",
    "ConfigMap": "io.k8s.api.core.v1.ConfigMap",
}


def cut(wheel: Path) -> dict[str, Any]:
    """The definitions of ROOTS and all that they refer to."""
    with zipfile.ZipFile(wheel) as archive:
        definitions = json.loads(archive.read(SOURCE))["$defs"]
    needed: dict[str, Any] = {}
    names = list(ROOTS.values())
    while names:
        name = names.pop()
        if name not in needed:
            needed[name] = _bare(definitions[name])
            names += _references(needed[name])
    return {"$defs": dict(sorted(needed.items()))}


def schema_of(kind: str) -> dict[str, Any]:
    """The JSON schema of a kind of manifest."""
    return {**json.loads(SCHEMA.read_text()), "$ref": f"#/$defs/{ROOTS[kind]}"}


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].split("/")[-1]
        node = list(node.values())
    if isinstance(node, list):
        for inner in node:
            yield from _references(inner)


def _bare(node: Any) -> Any:
    """Without descriptions, and with references within one file."""
    if isinstance(node, list):
        return [_bare(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    found = {}
    for key, inner in node.items():
        if key == "$ref":
            found[key] = f"#/$defs/{inner.split('/')[-1]}"
        elif key != "description" or not isinstance(inner, str):
            found[key] = _bare(inner)
    return found


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(cut(Path(sys.argv[1])), separators=(",", ":")) + "\n")
