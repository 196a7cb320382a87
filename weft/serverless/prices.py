"""The cost of a run: servers by the hour, functions by the millisecond, with prices from a dated file."""

from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from weft.errors import UserError


class FunctionPrice(BaseModel):
    """The price of functions with a given memory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_gb: float = Field(gt=0)
    gb_second: float = Field(ge=0)
    request: float = Field(ge=0)


class Prices(BaseModel):
    """The contents of a price file, in US dollars."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    date: Any
    functions: FunctionPrice
    servers: dict[str, float]
    graph_server: str
    weight_server: str
    gpu_server: str

    def hour(self, server: str) -> float:
        if server not in self.servers:
            raise UserError(
                f"the price file knows no server '{server}': add it under 'servers' ({_names(self.servers)})"
            )
        return self.servers[server]


def read_prices(path: str | None = None) -> Prices:
    """The prices in a file; None: those that come with weft."""
    return _parse(None if path is None else str(Path(path)))


@cache
def _parse(path: str | None) -> Prices:
    name = path or "prices.yaml"
    try:
        text = Path(path).read_text() if path else files("weft.serverless").joinpath("prices.yaml").read_text()
        return Prices.model_validate(yaml.safe_load(text))
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"the price file {name} cannot be read: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UserError(f"the price file {name}: {field}: {first['msg'].lower()}") from None


@dataclass(frozen=True)
class Cost:
    """The cost of some time. Weights are on graph servers here; separate weight servers are for comparison."""

    seconds: float
    graph_servers: float
    weight_servers: float
    function_time: float
    requests: float
    init: float
    hedge_waste: float  # the part of function_time whose responses were not used

    @property
    def total(self) -> float:
        return self.graph_servers + self.weight_servers + self.function_time + self.requests + self.init

    @property
    def value(self) -> float:
        """The value metric of Dorylus: 1 / (time x cost)."""
        spent = self.seconds * self.total
        return 1.0 / spent if spent > 0 else 0.0

    def to_dict(self) -> dict[str, float]:
        return {**asdict(self), "total": self.total, "value": self.value}


def price(
    prices: Prices,
    seconds: float,
    servers: int,
    functions: dict[str, float],
    weight_servers: int = 0,
    server: str | None = None,
) -> Cost:
    """The cost of some time. `functions`: the usage in an epoch's record.

    Function time is the billed time if the cloud reported it, and otherwise the time of tasks.
    """
    per_second = prices.functions.memory_gb * prices.functions.gb_second
    billed = functions.get("function_seconds", 0.0) or functions.get("task_seconds", 0.0)
    hours = seconds / 3600
    return Cost(
        seconds=seconds,
        graph_servers=servers * prices.hour(server or prices.graph_server) * hours,
        weight_servers=weight_servers * prices.hour(prices.weight_server) * hours,
        function_time=billed * per_second,
        requests=functions.get("requests", 0.0) * prices.functions.request,
        init=functions.get("init_seconds", 0.0) * per_second,
        hedge_waste=functions.get("wasted_seconds", 0.0) * per_second,
    )


def _names(servers: dict[str, float]) -> str:
    return ", ".join(sorted(servers))
