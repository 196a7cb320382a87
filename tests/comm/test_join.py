"""What a worker asks for when it joins: devices and backends that are not there are refused in one sentence."""

from pathlib import Path

import pytest
import torch

import weft
from weft.comm import open_communicator
from weft.comm.join import _choose_backend
from weft.config import device_of, make_config
from weft.errors import UserError

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@no_gpu
def test_auto_is_the_cpu_where_there_is_no_gpu() -> None:
    assert open_communicator(device="auto").device == torch.device("cpu")


@no_gpu
def test_a_run_on_auto_has_the_bits_of_one_on_the_cpu(tmp_path: Path) -> None:
    digests = []
    for device in ("auto", "cpu"):
        settings = {"device": device, "threads": 1, "train": {"epochs": 2}}
        run = weft.train("synthetic:tiny", run=tmp_path / device, quiet=True, **settings)
        assert "peak_gpu_bytes" not in run.summary
        digests.append(run.summary["weights_sha256"])
    assert digests[0] == digests[1]


@no_gpu
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"^device 'cuda' was asked for, but this machine has no usable GPU: use device"
    ):
        open_communicator(device="cuda")


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "minibatch"},
        {"strategy": "gsplit", "workers": 2},
        {"strategy": "dorylus"},
        {"strategy": "auto"},
        {"train": {"task": "links"}},
    ],
)
def test_auto_is_the_cpu_for_runs_that_need_host_memory(settings: dict[str, object]) -> None:
    assert device_of(make_config({**settings, "device": "auto"})) == "cpu"


def test_auto_is_settled_by_each_worker_else() -> None:
    assert device_of(make_config({"device": "auto"})) == "auto"
    assert [device_of(make_config({"device": name})) for name in ("cpu", "cuda")] == ["cpu", "cuda"]


def test_nccl_wants_a_gpu_for_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one GPU, as torch reports it, and two workers."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match=r"wants a GPU for each worker, but 2 workers of this host have 1: start fewer"):
        _choose_backend("nccl", torch.device("cuda", 0))
    assert _choose_backend("auto", torch.device("cuda", 0)) == "gloo"
