"""Messages come through as they were, and nothing else comes through."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_function.memory import ALIGNMENT, aligned, empty
from weft_function.wire import Malformed, Message, pack, unpack

DTYPES = ("float32", "float64", "int64", "int32", "uint16", "uint8", "bool")


def through(message: Message, as_bfloat16: bool = False) -> Message:
    """What is read of what is written."""
    frames = pack(message, as_bfloat16)
    payload = empty(sum(len(bytes(frame)) for frame in frames))
    payload[:] = np.frombuffer(b"".join(frames), np.uint8)
    return unpack(payload, len(frames[0]))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_what_is_packed_can_be_unpacked(data: st.DataObject) -> None:
    tensors = {}
    for number in range(data.draw(st.integers(0, 4))):
        shape = tuple(data.draw(st.lists(st.integers(0, 5), max_size=4)))
        dtype = data.draw(st.sampled_from(DTYPES))
        tensors[f"t{number}"] = np.asarray(np.random.default_rng(number).normal(0, 40, shape)).astype(dtype)
    fields = data.draw(st.dictionaries(st.text(max_size=5), st.integers(-(2**62), 2**62) | st.text(max_size=9)))
    message = Message("task", fields, tensors)
    found = through(message)
    assert (found.kind, found.fields) == (message.kind, message.fields)
    assert list(found.tensors) == list(tensors)
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype == tensor.dtype and found.tensors[name].shape == tensor.shape
        assert found.tensors[name].tobytes() == tensor.tobytes()
        assert found.tensors[name].ctypes.data % ALIGNMENT == 0 or not tensor.size
        assert not found.tensors[name].flags.writeable


def test_halved_rows_are_rounded_as_torch_rounds_them() -> None:
    import torch

    rows = np.random.default_rng(0).normal(0, 1e3, (50, 7)).astype(np.float32)
    rows[0, :4] = [np.inf, -np.inf, np.nan, 1 + 2**-8]
    found = through(Message("task", {}, {"x": rows}), as_bfloat16=True).tensors["x"]
    assert found.ctypes.data % ALIGNMENT == 0
    torch.testing.assert_close(
        torch.from_numpy(found.copy()), torch.from_numpy(rows).bfloat16().float(), rtol=0, atol=0, equal_nan=True
    )


def entry(name: object = "x", dtype: object = "float32", shape: object = (16,)) -> dict[str, object]:
    return {"kind": "task", "fields": {}, "tensors": [[name, dtype, shape]]}


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        (b"{", 0),
        (b"[" * 100_000, 0),
        (b"9" * 10_000, 0),
        ([], 0),
        ({"kind": "exec", "fields": {}, "tensors": []}, 0),
        ({"kind": ["task"], "fields": {}, "tensors": []}, 0),
        ({"kind": "task", "fields": [], "tensors": []}, 0),
        ({"kind": "task", "fields": {}, "tensors": {}}, 0),
        ({"kind": "task", "fields": {}, "tensors": [], "more": 1}, 0),
        (b'{"kind": "task", "fields": {"seconds": NaN}, "tensors": []}', 0),
        (b'{"kind": "task", "fields": {"seconds": -Infinity}, "tensors": []}', 0),
        (entry(), 0),
        (entry(), 2),
        (entry(shape=[17]), 1),
        (entry(dtype="object"), 1),
        (entry(dtype=["float32"]), 1),
        (entry(shape=[-1]), 1),
        (entry(shape=[2**40, 2**40]), 1),
        (entry(shape=[True]), 1),
        (entry(shape=[16.0]), 1),
        (entry(shape=[1] * 9), 1),
        (entry(name=""), 1),
        ({"kind": "task", "fields": {}, "tensors": [["x", "float32", [16]]] * 2}, 2),
        ({"kind": "task", "fields": {}, "tensors": [["x", "float32", [0]]] * 200}, 0),
    ],
)
def test_nonsense_is_malformed(header: object, rows: int) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    payload = np.frombuffer(text + bytes(rows * 64), np.uint8).copy()
    with pytest.raises(Malformed):
        unpack(payload, len(text))


def test_aligned_memory() -> None:
    raw = empty(4096)
    for offset in range(64):
        rows = raw[offset : offset + 24 * 8].view(np.float64).reshape(8, 3)
        rows[...] = offset
        found = aligned(rows)
        assert found.ctypes.data % ALIGNMENT == 0 and (found == offset).all()
        assert np.shares_memory(found, rows) == (offset == 0)
    turned = np.arange(12.0).reshape(3, 4).T
    assert aligned(turned).flags.c_contiguous and (aligned(turned) == turned).all()
    odd = np.lib.stride_tricks.as_strided(np.zeros(8), (4, 1), (8, 4096))  # contiguous, with a stride that none needs
    assert aligned(odd).strides == (8, 8)
    assert aligned(np.ones(())).shape == () and aligned(np.zeros((0, 3))).shape == (0, 3)
