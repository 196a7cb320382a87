"""What is modelled and what it costs: totals that can be counted by hand, and directions that must be right."""

from dataclasses import replace
from pathlib import Path

import pytest

from weft.cli.plans import print_places
from weft.cli.show import dollars
from weft.errors import UserError
from weft.serverless.deployments import compare_deployments
from weft.serverless.prices import price, read_prices
from weft.serverless.simulate import Graph, Machine, gcn, simulate_epoch

GRAPH = Graph("some", vertices=200_000, edges=20e6, features=300, classes=40)
MODEL = gcn(GRAPH, hidden=128)
MACHINE = Machine()


def test_work_alone_adds_up() -> None:
    """Without functions a server gathers and multiplies, one after the other: both follow from the shapes."""
    played = simulate_epoch(GRAPH, MODEL, 1, 0, MACHINE, None, intervals=8)
    gathered = 2 * GRAPH.edges * 40 * 4  # the aggregate of the input is kept; the second layer's rows are narrow
    products = 200_000 * (300 * 128 + 128 * 40)
    # forward and backward of the first stage; the last does both at once
    seconds = gathered / MACHINE.gather + (1 + 3) * products / MACHINE.multiply
    assert played.gathered == pytest.approx(gathered)
    assert played.seconds == pytest.approx(seconds, rel=0.35)
    assert played.bytes == 0 and played.function_seconds == 0


def test_more_of_everything_is_not_slower() -> None:
    base = simulate_epoch(GRAPH, MODEL, 1, 8, MACHINE, 0).seconds
    assert simulate_epoch(GRAPH, MODEL, 1, 16, MACHINE, 0).seconds <= 1.05 * base
    assert (
        simulate_epoch(GRAPH, MODEL, 1, 8, replace(MACHINE, function_link=2 * MACHINE.function_link), 0).seconds <= base
    )
    assert simulate_epoch(GRAPH, MODEL, 1, 8, replace(MACHINE, failures=0.05), 0).seconds > base


def test_staleness_hides_what_lies_between_the_first_and_the_last_wait() -> None:
    """Four layers have seven tensor steps; in order all of them wait, with staleness 0 the first and the last do."""
    model = gcn(GRAPH, hidden=128, layers=4)
    slow = replace(MACHINE, gather=2e9)

    def added(bound: int | None) -> float:
        waits, none = (
            simulate_epoch(GRAPH, model, 1, 64, replace(slow, round_trip=trip), bound, 64) for trip in (0.1, 0.0)
        )
        return waits.seconds - none.seconds

    assert added(None) == pytest.approx(0.7, abs=0.02)
    assert added(0) < 0.4 * 0.7
    assert added(1) == added(0)  # a larger bound allows the same schedule


def test_bytes_of_functions() -> None:
    played = simulate_epoch(GRAPH, MODEL, 2, 8, MACHINE, 0)
    rows = 200_000 * 4
    first = (300 + 300) + 128  # features and their aggregate there; what is sent comes back, and goes out again as
    assert played.bytes > rows * first  # a gradient: at least this much
    assert played.tasks == pytest.approx(2 * 64 * 3)  # two of the first stage and one of the last, of each interval


def test_prices() -> None:
    prices = read_prices()
    used = {"function_seconds": 3600.0, "requests": 1e6, "init_seconds": 10.0, "wasted_seconds": 36.0}
    cost = price(prices, 7200.0, servers=3, functions=used, weight_servers=1)
    per_second = 1.728 * 0.0000166667
    assert cost.graph_servers == pytest.approx(3 * 2 * 0.29)
    assert cost.weight_servers == pytest.approx(2 * 0.29)
    assert cost.function_time == pytest.approx(3600 * per_second)
    assert cost.requests == pytest.approx(0.20) and cost.init == pytest.approx(10 * per_second)
    assert cost.hedge_waste == pytest.approx(36 * per_second)
    assert cost.total == pytest.approx(sum(
        (cost.graph_servers, cost.weight_servers, cost.function_time, cost.requests, cost.init)))  # fmt: skip
    assert cost.value == pytest.approx(1 / (7200 * cost.total))


def test_three_places_are_compared() -> None:
    places = compare_deployments(GRAPH, MODEL, 2, MACHINE, read_prices())
    assert [place.label for place in places] == ["CPU servers", "CPU servers and functions", "GPU servers"]
    assert places[1].functions >= 1 and places[1].cost.function_time > 0
    assert places[2].epoch.seconds < places[0].epoch.seconds


@pytest.mark.parametrize("width", [80, 160])
def test_places_are_printed_in_dollars(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    places = compare_deployments(GRAPH, MODEL, 2, MACHINE, read_prices())
    print_places({"prices": "2026-01-01", "options": [place.to_dict() for place in places]})
    lines = capsys.readouterr().out.splitlines()
    title = " ".join(" ".join(lines).split())
    assert "modelled" in title and "dollars for 1,000 epochs, by the prices of 2026-01-01" in title
    assert all(len(line) <= width and "\N{HORIZONTAL ELLIPSIS}" not in line for line in lines)
    for place in places:
        (line,) = (
            line for line in lines if dollars(1000 * place.cost.graph_servers) in line and place.label[:3] in line
        )
        assert dollars(1000 * place.cost.total) in line and f"{place.epoch.seconds:.3f}" in line


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "$0"),
        (2.314e-06, "$0.00000231"),
        (0.01, "$0.0100"),
        (0.2896, "$0.290"),
        (1.5, "$1.50"),
        (1234567.891, "$1,234,567.89"),
    ],
)
def test_dollars_are_figures_without_powers_of_ten(amount: float, text: str) -> None:
    assert dollars(amount) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("date: 2026-01-01\n", "functions"),
        ("[", "cannot be read"),
        ("date: 1\nfunctions: {memory_gb: -1, gb_second: 0, request: 0}\n", "memory_gb"),
    ],
)
def test_price_files_with_mistakes(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        read_prices(str(file))
    with pytest.raises(UserError, match="cannot be read"):
        read_prices(str(tmp_path / "none.yaml"))


def test_a_server_that_has_no_price() -> None:
    with pytest.raises(UserError, match="knows no server 'x9'"):
        read_prices().hour("x9")
