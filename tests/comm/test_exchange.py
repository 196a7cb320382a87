"""The exchange is linear, its transpose is its adjoint, and its bytes are the formula's."""

import pytest
import torch

from tests.workers import run_workers
from weft.comm import Communicator, Route, bf16, build_route, exchange, raw, start_exchange

WORKERS = [1, 2, 3, 4, 8]


def _halo(worker: int, num_workers: int, seed: int) -> tuple[torch.Tensor, list[int], int]:
    """A drawn halo: any owner, oneself too, rows may be asked for twice, some pairs have nothing to say."""
    sizes = [3 + (5 * q + seed) % 7 for q in range(num_workers)]
    generator = torch.Generator().manual_seed(1000 * seed + worker)
    rows, counts = [], []
    for q in range(num_workers):
        count = int(torch.randint(0, 6, (1,), generator=generator))
        if (worker + q + seed) % 3 == 0:
            count = 0
        rows.append(torch.randint(0, sizes[q], (count,), generator=generator))
        counts.append(count)
    return torch.cat(rows), counts, sizes[worker]


def _route_of(comm: Communicator, seed: int) -> tuple[Route, torch.Tensor, list[int]]:
    halo_rows, counts, num_rows = _halo(comm.worker, comm.num_workers, seed)
    return build_route(comm, halo_rows, counts, num_rows), halo_rows, counts


def _values(worker: int, rows: int, width: int, dtype: torch.dtype, salt: int) -> torch.Tensor:
    return torch.randn(rows, width, dtype=dtype, generator=torch.Generator().manual_seed(100 * salt + worker))


def adjoint(comm: Communicator, seed: int) -> tuple[float, float]:
    route, _, _ = _route_of(comm, seed)
    x = _values(comm.worker, route.num_in, 5, torch.float64, 1)
    y = _values(comm.worker, route.num_out, 5, torch.float64, 2)
    hx = start_exchange(comm, route, x, raw, "hidden_forward", "x").finish()
    hty = start_exchange(comm, route.transpose(), y, raw, "hidden_backward", "y").finish()
    sums = torch.stack([(hx * y).sum(), (x * hty).sum()])
    comm.all_reduce(sums, "control", "sums")
    return float(sums[0]), float(sums[1])


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_transposed_route_is_adjoint(num_workers: int, seed: int) -> None:
    for left, right in run_workers(adjoint, num_workers, seed):
        assert left == pytest.approx(right, rel=1e-12, abs=1e-12)
        assert left != 0.0 or num_workers == 1


def forward_and_gradient(
    comm: Communicator, seed: int, codec_name: str, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    route, _, _ = _route_of(comm, seed)
    x = _values(comm.worker, route.num_in, 4, dtype, 1).requires_grad_()
    y = exchange(x, route, comm, bf16 if codec_name == "bf16" else raw)
    (y * _values(comm.worker, route.num_out, 4, dtype, 2)).sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("codec_name", ["raw", "bf16"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_and_gradients_equal_indexing(num_workers: int, codec_name: str, dtype: torch.dtype) -> None:
    seed = 4
    halos = [_halo(w, num_workers, seed) for w in range(num_workers)]
    xs = [_values(w, halos[w][2], 4, dtype, 1) for w in range(num_workers)]
    gradients = [torch.zeros_like(x) for x in xs]
    results = run_workers(forward_and_gradient, num_workers, seed, codec_name, dtype)
    for worker, (y, _) in enumerate(results):
        halo_rows, counts, _ = halos[worker]
        owners = torch.repeat_interleave(torch.arange(num_workers), torch.tensor(counts)).tolist()
        weights = _values(worker, len(owners), 4, dtype, 2)
        assert y.shape == weights.shape
        for slot, (owner, row) in enumerate(zip(owners, halo_rows.tolist(), strict=True)):
            lossy = codec_name == "bf16" and owner != worker  # own rows are not coded
            value, weight = xs[owner][row], weights[slot]
            assert torch.equal(y[slot], value.to(torch.bfloat16).to(dtype) if lossy else value)
            gradients[owner][row] += weight.to(torch.bfloat16).to(dtype) if lossy else weight
    for worker, (_, gradient) in enumerate(results):
        torch.testing.assert_close(gradient, gradients[worker])


def count_bytes(comm: Communicator, seed: int, width: int) -> tuple[dict[str, int], int, int]:
    route, _, _ = _route_of(comm, seed)
    x = _values(comm.worker, route.num_in, width, torch.float32, 1).requires_grad_()
    exchange(x, route, comm, bf16).sum().backward()
    start_exchange(comm, route, x, raw, "features", "x").finish()
    return comm.sent, route.num_sent(comm.worker), route.transpose().num_sent(comm.worker)


@pytest.mark.parametrize("num_workers", WORKERS)
def test_counted_bytes_are_the_formula(num_workers: int) -> None:
    seed, width = 1, 6
    halos = [_halo(w, num_workers, seed) for w in range(num_workers)]
    for worker, (sent, out_rows, back_rows) in enumerate(run_workers(count_bytes, num_workers, seed, width)):
        needed = sum(count for q, count in enumerate(halos[worker][1]) if q != worker)
        served = sum(halos[q][1][worker] for q in range(num_workers) if q != worker)
        assert (out_rows, back_rows) == (served, needed)
        assert sent["ids"] == 8 * needed
        assert sent["hidden_forward"] == bf16.leaving_bytes(0, served, width, torch.float32) == 2 * width * served
        assert sent["hidden_backward"] == bf16.leaving_bytes(0, needed, width, torch.float32) == 2 * width * needed
        assert sent["features"] == raw.leaving_bytes(0, served, width, torch.float32) == 4 * width * served
        assert sent["control"] == (8 * num_workers if num_workers > 1 else 0)
        assert sent["gradients"] == sent["topology"] == 0


def several_in_flight(comm: Communicator) -> bool:
    route, _, _ = _route_of(comm, 4)
    xs = [torch.full((route.num_in, 3), float(10 * k + comm.worker)) for k in range(4)]
    flights = [start_exchange(comm, route, x, raw, "features", f"x{k}") for k, x in enumerate(xs)]
    finished = {k: flights[k].finish() for k in (2, 0, 3, 1)}  # not in the order of their starts
    for k, y in finished.items():
        for peer, rows in enumerate(route.recv_rows):
            if not torch.equal(y[rows], torch.full_like(y[rows], float(10 * k + peer))):
                return False
    return True


def test_exchanges_in_flight_do_not_mix() -> None:
    assert run_workers(several_in_flight, 3) == [True] * 3


def adds_into(comm: Communicator) -> torch.Tensor:
    route, _, _ = _route_of(comm, 4)
    x = torch.ones(route.num_in, 2)
    out = torch.full((route.num_out, 2), 5.0)
    return start_exchange(comm, route, x, bf16, "features", "x", out=out).finish()


def test_out_is_added_to() -> None:
    for out in run_workers(adds_into, 3):
        assert torch.equal(out, torch.full_like(out, 6.0))


def bf16_rows(comm: Communicator) -> bool:
    route, halo_rows, counts = _route_of(comm, 4)
    xs = [_values(q, _halo(q, comm.num_workers, 4)[2], 4, torch.bfloat16, 1) for q in range(comm.num_workers)]
    y = start_exchange(comm, route, xs[comm.worker], raw, "features", "x").finish()
    expected = [xs[q][rows] for q, rows in enumerate(halo_rows.split(counts))]
    return torch.equal(y, torch.cat(expected))


def test_bf16_tensors_travel_raw() -> None:
    assert run_workers(bf16_rows, 2) == [True, True]


def test_alone_needs_no_network() -> None:
    comm = Communicator.alone()
    rows, counts, num_rows = _halo(0, 1, 1)
    route = build_route(comm, rows, counts, num_rows)
    x = torch.randn(num_rows, 3)
    assert torch.equal(exchange(x, route, comm), x[rows])
    assert sum(comm.sent.values()) == 0
