"""Actors of a Ray cluster of this machine's own."""

import pytest
import torch

pytest.importorskip("ray", reason="needs weft[ray]")

from tests.serverless.cases import CASES, pipelined, some_shards
from weft.comm import Communicator
from weft.serverless.invokers import make_invoker
from weft.serverless.settings import ExecutorConfig


def run(config, make=None):
    return pipelined(Communicator.alone(), some_shards(1), CASES["gat"], 4, config, make)


def test_bitwise_as_inline_and_after_a_kill():
    import ray

    made = []

    def make(config, trust):
        made.append(make_invoker(config, trust))
        invoker, submit, count = made[-1], made[-1].submit, [0]

        def killing(request, deadline):
            future = submit(request, deadline)
            count[0] += 1
            if count[0] == 20:
                ray.kill(invoker._actors[0])
            return future

        invoker.submit = killing
        return invoker

    wanted = run(ExecutorConfig(intervals=4))
    found = run(ExecutorConfig(name="ray", intervals=4, workers=2, placement="functions"), make)
    assert wanted["losses"] == found["losses"]
    assert all(torch.equal(value, found["weights"][name]) for name, value in wanted["weights"].items())
    assert made[0].usage().tasks > 0
