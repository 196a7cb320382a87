"""Messages come through as they were, and nothing else comes through."""

import json
import random
import resource

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft_function import wire
from weft_function.wire import Message, Refused, Seal, new_key

KEY = new_key()
DTYPES = ("float32", "float64", "int64", "int32", "uint16", "uint8", "bool")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_what_is_closed_can_be_opened(data: st.DataObject) -> None:
    tensors = {}
    for number in range(data.draw(st.integers(0, 4))):
        shape = tuple(data.draw(st.lists(st.integers(0, 5), max_size=4)))
        dtype = data.draw(st.sampled_from(DTYPES))
        tensors[f"t{number}"] = np.asarray(np.random.default_rng(number).normal(0, 40, shape)).astype(dtype)
    fields = data.draw(st.dictionaries(st.text(max_size=5), st.integers(-(2**62), 2**62) | st.text(max_size=9)))
    message = Message("task", fields, tensors)
    found = Seal(KEY).open(Seal(KEY).close(message))
    assert (found.kind, found.fields) == (message.kind, message.fields)
    assert list(found.tensors) == list(tensors)
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype == tensor.dtype and found.tensors[name].shape == tensor.shape
        assert found.tensors[name].tobytes() == tensor.tobytes()


def test_halved_rows_are_rounded_as_torch_rounds_them() -> None:
    import torch

    rows = np.random.default_rng(0).normal(0, 1e3, (50, 7)).astype(np.float32)
    rows[0, :4] = [np.inf, -np.inf, np.nan, 1 + 2**-8]
    found = Seal(KEY).open(Seal(KEY, halve=True).close(Message("task", {}, {"x": rows}))).tensors["x"]
    torch.testing.assert_close(
        torch.from_numpy(found.copy()), torch.from_numpy(rows).bfloat16().float(), rtol=0, atol=0, equal_nan=True
    )


def test_others_old_ones_and_repeated_ones_are_refused() -> None:
    now = [1000.0]
    seal = Seal(KEY, clock=lambda: now[0])
    frames = Seal(KEY, clock=lambda: now[0]).close(Message("hello"))
    with pytest.raises(Refused, match="not ours"):
        seal.open(Seal(new_key(), clock=lambda: now[0]).close(Message("hello")))
    assert seal.open(frames).kind == "hello"
    with pytest.raises(Refused, match="opened before"):
        seal.open(frames)
    late = Seal(KEY, clock=lambda: now[0]).close(Message("hello"))
    now[0] += 121
    with pytest.raises(Refused, match="expired"):
        seal.open(late)
    brief = Seal(KEY, lasts_until=now[0] + 5, clock=lambda: now[0])
    word = Seal(KEY, clock=lambda: now[0]).close(Message("hello"))
    now[0] += 6
    with pytest.raises(Refused, match="expired"):
        brief.open(word)
    assert seal.refused == 3 and brief.refused == 1


def test_what_is_remembered_of_messages_does_not_grow_for_ever() -> None:
    now = [0.0]
    ours, theirs = Seal(KEY, clock=lambda: now[0]), Seal(KEY, clock=lambda: now[0])
    for _ in range(3000):
        ours.open(theirs.close(Message("hello")))
        now[0] += 1
    assert len(ours._seen) < 200


def forge(header: object, *frames: bytes) -> list[bytes]:
    """A message under the right seal whose header says what it likes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    seal = wire._SEAL.pack(wire._MAGIC, 2**60, random.randbytes(16))
    return [seal + Seal(KEY)._mac(seal, [text, *frames]), text, *frames]


def entry(name: object = "x", dtype: object = "float32", shape: object = (1,)) -> dict[str, object]:
    return {"kind": "task", "fields": {}, "tensors": [[name, dtype, shape]]}


@pytest.mark.parametrize(
    "frames",
    [
        forge(b"{"),
        forge(b"[" * 100_000),
        forge([]),
        forge({"kind": "exec", "fields": {}, "tensors": []}),
        forge({"kind": "task", "fields": [], "tensors": []}),
        forge({"kind": "task", "fields": {}, "tensors": {}}),
        forge(entry(), b"123"),
        forge(entry()),
        forge(entry(), b"1234", b"1234"),
        forge(entry(dtype="object"), b"12345678"),
        forge(entry(shape=[-1]), b"1234"),
        forge(entry(shape=[2**40, 2**40]), b"1234"),
        forge(entry(shape=[True]), b"1234"),
        forge(entry(shape=[1] * 9), b"1234"),
        forge(entry(name=""), b"1234"),
        forge({"kind": "task", "fields": {}, "tensors": [["x", "float32", [1]]] * 2}, b"1234", b"1234"),
    ],
)
def test_even_under_our_seal_nonsense_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(Refused):
        Seal(KEY).open(frames)


def test_a_hundred_thousand_malformed_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is parsed, none crashes, and memory does not grow."""
    parsed = []
    monkeypatch.setattr(wire, "_parse", lambda *given: parsed.append(given))
    draws = random.Random(0)
    right = Seal(KEY).close(Message("task", {"id": [1, 2]}, {"x": np.ones((8, 8)), "y": np.zeros(3, np.int32)}))
    right = [bytes(frame) for frame in right]
    seal = Seal(KEY)

    def mutated() -> list[bytes]:
        frames = list(right)
        match draws.randrange(6):
            case 0:  # a bit
                at = draws.randrange(len(frames))
                body = bytearray(frames[at])
                body[draws.randrange(len(body))] ^= 1 << draws.randrange(8)
                frames[at] = bytes(body)
            case 1:  # its length
                at = draws.randrange(len(frames))
                frames[at] = frames[at][: draws.randrange(len(frames[at]))]
            case 2:  # a frame less, or again
                at = draws.randrange(len(frames))
                frames[at : at + 1] = [] if draws.random() < 0.5 else [frames[at]] * 2
            case 3:  # a byte from one frame to the next
                at = draws.randrange(len(frames) - 1)
                frames[at], frames[at + 1] = frames[at][:-1], frames[at][-1:] + frames[at + 1]
            case 4:  # anything
                frames = [draws.randbytes(draws.randrange(200)) for _ in range(draws.randrange(6))]
            case _:  # frames in another order
                draws.shuffle(frames)
        return frames

    count, before = 0, 0
    while count < 100_000:
        frames = mutated()
        if frames == right:
            continue
        with pytest.raises(Refused):
            seal.open(frames)
        count += 1
        if count == 20_000:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert seal.refused == 100_000 and not parsed and not seal._seen
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096  # KiB
