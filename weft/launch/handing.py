"""Models that are given as objects, handed to the workers that their run starts.

A function or class goes over as source text (`weft.launch.source`). A module goes over as its class, its plain
attributes and its tensors. Both go through a pipe to each worker, never into files, and nothing is pickled.
"""

import json
import linecache
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from weft.errors import UserError
from weft.launch.source import MAIN, Source, reference_of
from weft.layers import Given, ModelConfig

MODULE = "weft_handed_over"  # of the source text, in workers
LENGTH_BYTES = 8
INTERNAL = frozenset(vars(nn.Module()))  # what every module has
HOOKS = frozenset(name for name in INTERNAL if "hooks" in name)


def pack(model: Given) -> bytes:
    """The model as bytes for `unpack`; a UserError where it cannot go over."""
    source, tensors = Source(), dict[str, Tensor]()
    head: dict[str, Any] = {"paths": [path for path in sys.path if path]}
    if isinstance(model, nn.Module):
        head["modules"] = _Modules(source, tensors).describe(model)
    else:
        head["callable"] = _reference(model, source, f"a {type(model).__name__}")
    text = json.dumps({**head, "source": source.text}).encode()
    return len(text).to_bytes(LENGTH_BYTES, "little") + text + save(tensors)


def unpack(packed: bytes) -> Given:
    """The model that was packed; the source text is run."""
    end = LENGTH_BYTES + int.from_bytes(packed[:LENGTH_BYTES], "little")
    head = json.loads(packed[LENGTH_BYTES:end])
    sys.path += [path for path in head["paths"] if path not in sys.path]  # last: they hide nothing
    module, text = ModuleType(MODULE), head["source"]
    sys.modules[MODULE] = module
    linecache.cache[f"<{MODULE}>"] = (len(text), None, text.splitlines(keepends=True), f"<{MODULE}>")  # for tracebacks
    exec(compile(text, f"<{MODULE}>", "exec", dont_inherit=True), vars(module))
    if "callable" in head:
        found: Given = _find(head["callable"])
        return found
    return _rebuilt(head["modules"], load(packed[end:]))


def _reference(value: Any, source: Source, name: str) -> list[str]:
    """Module and name of a function or class in a worker."""
    if getattr(value, "__module__", None) == MAIN and hasattr(value, "__qualname__"):
        source.add(value.__name__, value)
        return [MODULE, value.__name__]
    found = reference_of(value)
    if found is None:
        raise UserError(
            f"several workers cannot be given {name}: give a function that is defined at the top level of this script, "
            "notebook, or of a module, and builds the model"
        )
    return list(found)


def _find(reference: list[str]) -> Any:
    __import__(reference[0])
    return getattr(sys.modules[reference[0]], reference[1])


class _Modules:
    """A module and those in it, each once, as plain values; tensors apart."""

    def __init__(self, source: Source, tensors: dict[str, Tensor]) -> None:
        self._source, self._tensors = source, tensors
        self._numbers: dict[int, int] = {}
        self._described: list[dict[str, Any]] = []
        self._keys: dict[int, str] = {}

    def describe(self, model: nn.Module) -> list[dict[str, Any]]:
        """All modules, the model first."""
        self._number(model, type(model).__name__)
        return self._described

    def _number(self, module: nn.Module, where: str) -> int:
        if id(module) in self._numbers:
            return self._numbers[id(module)]
        number = self._numbers[id(module)] = len(self._described)
        described: dict[str, Any] = {}
        self._described.append(described)
        state = vars(module)
        if any(state[name] for name in HOOKS):
            raise UserError(f"{where} has hooks, which several workers cannot be given: give a function that adds them")
        described |= {
            "class": _reference(type(module), self._source, where),
            "training": module.training,
            "parameters": {name: self._key(tensor) for name, tensor in module._parameters.items()},
            "buffers": {name: self._key(tensor) for name, tensor in module._buffers.items()},
            "not_kept": sorted(module._non_persistent_buffers_set),
            "attributes": {
                name: self._value(value, f"{where}.{name}") for name, value in state.items() if name not in INTERNAL
            },
            "modules": {
                name: None if inner is None else self._number(inner, f"{where}.{name}")
                for name, inner in module._modules.items()
            },
        }
        return number

    def _key(self, tensor: Tensor | None) -> dict[str, Any] | None:
        """What stands for a tensor; one that occurs twice (tied weights) stays one."""
        if tensor is None:
            return None
        key = self._keys.setdefault(id(tensor), str(len(self._keys)))
        self._tensors.setdefault(key, tensor.detach().cpu().contiguous().clone())
        return {"key": key, "learns": tensor.requires_grad}

    def _value(self, value: Any, where: str) -> Any:
        """A plain value as JSON, with a word for what JSON does not have."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list | tuple):
            items = [self._value(item, where) for item in value]
            return {"list" if isinstance(value, list) else "tuple": items}
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {"dict": {key: self._value(item, where) for key, item in value.items()}}
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, ModelConfig):
            return {"config": value.model_dump(mode="json")}
        if is_dataclass(value) and not isinstance(value, type):
            held = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
            if all(item is None or isinstance(item, bool | int | float | str) for item in held.values()):
                return {"dataclass": {"class": _reference(type(value), self._source, where), "fields": held}}
        if callable(value) and not isinstance(value, nn.Module) and hasattr(value, "__name__"):
            return {"reference": _reference(value, self._source, where)}
        raise UserError(
            f"{where} is a {type(value).__name__}, and several workers are given a model as plain values and tensors: "
            "give a function that builds the model instead (model=build), or train with one worker"
        )


def _rebuilt(described: list[dict[str, Any]], tensors: Mapping[str, Tensor]) -> nn.Module:
    made: list[nn.Module] = []
    for one in described:
        kind = _find(one["class"])
        module: nn.Module = kind.__new__(kind)
        nn.Module.__init__(module)
        made.append(module)
    shared: dict[str, nn.Parameter] = {}
    for module, one in zip(made, described, strict=True):
        for name, held in one["parameters"].items():
            if held is not None and held["key"] not in shared:
                shared[held["key"]] = nn.Parameter(tensors[held["key"]], requires_grad=held["learns"])
            module._parameters[name] = None if held is None else shared[held["key"]]
        for name, held in one["buffers"].items():
            module._buffers[name] = None if held is None else tensors[held["key"]]
        module._non_persistent_buffers_set.update(one["not_kept"])
        vars(module).update({name: _plain(value) for name, value in one["attributes"].items()})
        module._modules.update({name: None if k is None else made[k] for name, k in one["modules"].items()})
        module.training = one["training"]
    return made[0]


def _plain(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    makers: dict[str, Callable[[], Any]] = {
        "list": lambda: [_plain(item) for item in inner],
        "tuple": lambda: tuple(_plain(item) for item in inner),
        "dict": lambda: {key: _plain(item) for key, item in inner.items()},
        "dtype": lambda: getattr(torch, inner),
        "config": lambda: ModelConfig(**inner),
        "dataclass": lambda: _find(inner["class"])(**inner["fields"]),
        "reference": lambda: _find(inner),
    }
    return makers[kind]()
