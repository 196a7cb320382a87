"""What was said in one session opens in no other, and not twice, and not out of its order; no clock is asked."""

import random
import resource

import numpy as np
import pytest

from weft_function.session import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    JOIN_BYTES,
    SEAL_BYTES,
    Session,
    check_join,
    lease_of,
    make_challenge,
    make_hello,
    make_join,
    new_key,
    new_lease,
)
from weft_function.wire import Malformed, Message, Refused

KEY, SERVER = new_key(), b"s" * 16


def greeting(key: bytes = KEY, server: bytes = SERVER) -> bytes:
    lease = new_lease()
    hello = make_hello(lease)
    assert lease_of(hello) == lease
    challenge = make_challenge(key, hello, server)
    join = make_join(key, hello, challenge)
    check_join(key, hello, challenge, join)
    assert (len(hello), len(challenge), len(join)) == (HELLO_BYTES, CHALLENGE_BYTES, JOIN_BYTES)
    return hello + challenge + join


def sessions(key: bytes = KEY) -> tuple[Session, Session]:
    said = greeting(key)
    return Session(key, said, "worker"), Session(key, said, "server")


def sealed(session: Session, number: int = 0) -> bytes:
    return b"".join(session.seal(Message("response", {"number": number}, {"x": np.full((3, 2), float(number))})))


def test_both_sides_hear_each_other() -> None:
    worker, server = sessions()
    for number in range(3):
        assert server.open_all(sealed(worker, number)).fields == {"number": number}
        assert worker.open_all(sealed(server, number)).tensors["x"][0, 0] == number


def test_replayed_reflected_and_reordered_messages_are_refused() -> None:
    worker, server = sessions()
    first, second, third = (sealed(worker, number) for number in range(3))
    with pytest.raises(Refused, match="1 was received where message 0"):
        server.open_all(second)  # one was left out
    assert server.open_all(first).fields == {"number": 0}
    with pytest.raises(Refused, match="0 was received where message 1"):
        server.open_all(first)  # again
    with pytest.raises(Refused, match="2 was received where message 1"):
        server.open_all(third)
    with pytest.raises(Refused, match="not made by the other side"):
        worker.open_all(first)  # to who sent it
    assert server.open_all(second).fields == {"number": 1}  # what was refused changed nothing


def test_an_answer_of_another_session_is_refused() -> None:
    """The same lease and key, at another server or at another time; the same server, another lease."""
    worker, _ = sessions()
    recorded = sealed(worker)
    for said in (greeting(), greeting(server=b"t" * 16)):
        with pytest.raises(Refused, match="not made by the other side"):
            Session(KEY, said, "server").open_all(recorded)


def test_a_recorded_greeting_joins_nowhere() -> None:
    hello = make_hello(new_lease())
    challenge = make_challenge(KEY, hello, SERVER)
    join = make_join(KEY, hello, challenge)
    for server in (SERVER, b"another server.."):
        again = make_challenge(KEY, hello, server)
        with pytest.raises(Refused, match="another key"):
            check_join(KEY, hello, again, join)
    other = make_hello(new_lease())
    with pytest.raises(Refused, match="another key"):  # a recorded challenge deceives no worker
        make_join(KEY, other, challenge)
    with pytest.raises(Refused, match="another key"):
        make_join(new_key(), hello, challenge)
    with pytest.raises(Refused, match="another version"):
        make_join(KEY, hello, b"XXXX" + challenge[4:])
    with pytest.raises(Refused, match="another version"):
        lease_of(b"XXXX" + hello[4:])


def test_nothing_is_allocated_for_a_size_that_may_not_come() -> None:
    worker, server = sessions()
    seal = worker.seal(Message("response", {}, {"x": np.zeros(1 << 20, np.uint8)}))[0]
    with pytest.raises(Refused, match="exceeds the limit of 1024"):
        server.read_seal(bytes(seal), 1024)


def test_what_is_ours_but_not_in_order_does_not_end_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, server = sessions()
    with monkeypatch.context() as patched:
        patched.setattr("weft_function.session.pack", lambda message, as_bfloat16: [b"[]".ljust(64)])
        broken = b"".join(worker.seal(Message("response")))
    with pytest.raises(Malformed):
        server.open_all(broken)
    assert server.open_all(sealed(worker, 5)).fields == {"number": 5}


def test_a_hundred_thousand_altered_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is parsed, none crashes, and memory does not grow."""
    parsed = []
    monkeypatch.setattr("weft_function.session.unpack", lambda *given: parsed.append(given))
    draws = random.Random(0)
    worker, server = sessions()
    tensors = {"x": np.ones((8, 8)), "y": np.zeros(3, np.int32)}
    right = b"".join(worker.seal(Message("task", {"id": [1, 2]}, tensors)))

    def altered() -> bytes:
        body = bytearray(right)
        match draws.randrange(5):
            case 0:  # a bit
                body[draws.randrange(len(body))] ^= 1 << draws.randrange(8)
            case 1:  # its length
                del body[draws.randrange(len(body)) :]
            case 2:  # a byte more
                body.insert(draws.randrange(len(body)), draws.randrange(256))
            case 3:  # anything
                body = bytearray(draws.randbytes(draws.randrange(SEAL_BYTES + 200)))
            case _:  # two pieces in another order
                at = draws.randrange(1, len(body) - 1)
                body = body[at:] + body[:at]
        return bytes(body)

    count, before = 0, 0
    while count < 100_000:
        body = altered()
        if body == right:
            continue
        with pytest.raises(Refused):
            server.open_all(body)
        count += 1
        if count == 20_000:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert not parsed
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096  # KiB
