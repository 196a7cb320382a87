"""The validated run: every setting with its default, from a YAML file, the command line or Python."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from weft.errors import UserError
from weft.layers import ModelConfig, check_model
from weft.sample import SampleConfig
from weft.serverless.prices import read_prices
from weft.serverless.settings import ExecutorConfig
from weft.strategy import ExchangeConfig, MemoryConfig, check_exchange, check_plan, resolve_strategy
from weft.train.metrics import check_metric
from weft.train.optim import OptimConfig
from weft.train.settings import LinkConfig, TrainConfig


class PartitionConfig(BaseModel):
    """How a graph that is not partitioned yet is cut."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str = Field(
        "auto", description="auto, metis, presample (by what the run's minibatches use), stream, community or random"
    )
    parts: int | None = Field(None, ge=1, description="how many parts; one per worker unless set")
    presample_epochs: int = Field(3, ge=1, description="epochs of minibatches that are drawn and counted (presample)")


class RunConfig(BaseModel):
    """A run, whole. `weft train CONFIG.yaml` reads it; RUN/config.yaml is one, resolved."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: str = Field("synthetic:demo", description="data set name, graph folder, partition folder, or .npz file")
    run: str | None = Field(None, description="run folder; runs/NAME-MODEL-N unless set")
    strategy: str = Field("full", description="preset of the settings of exchange, memory, sample and executor")
    workers: int = Field(1, ge=1, description="processes")
    threads: int | None = Field(None, ge=1, description="threads per worker; the machine's cores shared out unless set")
    seed: int = Field(0, ge=0, description="of weights, dropout and partition")
    device: Literal["cpu", "cuda"] = Field("cpu", description="where rows live")
    deadline_seconds: float = Field(300.0, gt=0, description="longest wait for another worker")
    model: ModelConfig = Field(default_factory=ModelConfig)
    optim: OptimConfig = Field(default_factory=OptimConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    exchange: ExchangeConfig = Field(default_factory=ExchangeConfig)
    link: LinkConfig = Field(default_factory=LinkConfig)
    sample: SampleConfig = Field(default_factory=SampleConfig)
    memory: MemoryConfig = Field(default_factory=MemoryConfig)
    executor: ExecutorConfig = Field(default_factory=ExecutorConfig)
    partition: PartitionConfig = Field(default_factory=PartitionConfig)


def make_config(settings: Mapping[str, Any]) -> RunConfig:
    """A checked config; every mistake is one sentence that names the key."""
    settings = dict(settings)
    strategy, workers = settings.get("strategy", "full"), settings.get("workers", 1)
    if isinstance(strategy, str) and isinstance(workers, int):
        settings = resolve_strategy(strategy, settings, workers)
    try:
        config = RunConfig.model_validate(settings)
    except ValidationError as error:
        raise UserError(_explain(error)) from None
    check_model(config.model)
    check_exchange(config.exchange, config.model.name, config.model.reduce)
    check_plan(config.exchange, config.sample, config.model.layers)
    check_task(config)
    check_executor(config)
    if config.train.metric != "auto":
        check_metric(config.train.metric)
    return config


def check_task(config: RunConfig) -> None:
    if config.exchange.plan != "full" and config.device != "cpu":
        raise UserError(
            f"plan {config.exchange.plan} samples and trains in host memory: use --set device=cpu, or the full graph "
            f"with device {config.device}"
        )
    if config.train.task == "vertices":
        return
    if config.exchange.plan == "full":
        raise UserError("train.task=links learns from minibatches of edges: use --strategy minibatch or batchgnn")
    if config.exchange.plan == "split":
        raise UserError(
            "plan split shares a minibatch by the owners of its seeds, and an edge's two ends may have two: use "
            "--strategy minibatch or batchgnn with train.task=links"
        )
    if config.train.metric not in ("auto", "roc_auc"):
        raise UserError(f"edges are judged by roc_auc, not {config.train.metric}: leave train.metric out")
    if config.train.select == "loss":
        raise UserError("edges are judged by roc_auc on validation: leave train.select out")


def check_executor(config: RunConfig) -> None:
    """Refuses what a pipeline of intervals cannot do, with the reason."""
    executor, exchange = config.executor, config.exchange
    if not executor.pipelines:
        if executor.staleness != "pipe":
            raise UserError(
                "executor.staleness lets intervals run ahead of each other, and this run has none: set "
                "executor.intervals, or use --strategy dorylus"
            )
        return
    if isinstance(executor.staleness, int) and executor.staleness < 0:
        raise UserError(f"executor.staleness is {executor.staleness}: use pipe, 0 or more")
    if exchange.plan != "full":
        raise UserError(f"executor {executor.name} goes over the full graph in intervals: use plan full")
    if exchange.schedule != "materialised" or exchange.codec != "raw":
        raise UserError(
            f"executor {executor.name} sends rows when an interval has made them, as they are: leave out "
            f"exchange.schedule and exchange.codec"
        )
    if config.device != "cpu" or config.train.precision == "bfloat16":
        raise UserError(f"executor {executor.name} works in host memory, in float32 or float64: use device cpu")
    read_prices(executor.prices)
    if executor.name in ("lambda", "ray") and executor.workers == 0:
        raise UserError(f"executor {executor.name} starts its functions itself: set executor.workers to 1 or more")
    if executor.most_workers is not None and executor.most_workers < executor.workers:
        raise UserError(
            f"executor.most_workers is {executor.most_workers}, less than executor.workers, {executor.workers}"
        )
    if executor.wire == "bfloat16" and config.train.precision == "float64":
        raise UserError("executor.wire=bfloat16 halves float32: use train.precision=float32 with it")


def read_yaml(path: Path) -> dict[str, Any]:
    """The settings of a config file."""
    try:
        settings = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: give the path of a YAML config file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from None
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise UserError(f"{path} holds a {type(settings).__name__}, not settings: see 'weft train --help'")
    return settings


def merge(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with others on top, section by section."""
    merged = dict(base)
    for key, value in extra.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def parse_set(assignments: list[str]) -> dict[str, Any]:
    """`section.key=value` pairs of the command line; values are read as YAML."""
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise UserError(f"--set {assignment} is not of the form section.key=value")
        try:
            value = yaml.safe_load(text)
            value = float(text) if isinstance(value, str) and _is_number(text) else value
        except yaml.YAMLError:
            value = text
        for name in reversed(key.split(".")):
            value = {name: value}
        settings = merge(settings, value)
    return settings


def _is_number(text: str) -> bool:
    """YAML 1.1 takes 1e-3 for a string."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = known_keys()
        near = difflib.get_close_matches(where, known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else "see 'weft train --help'"
        return f"config key {where} does not exist: {hint}"
    return f"config key {where}: {first['msg'].lower()} (it is {first['input']!r})"


def known_keys() -> dict[str, str]:
    """Every key with its description, sections flattened by dots."""
    return dict(_keys(RunConfig, ""))


def _keys(model: type[BaseModel], prefix: str) -> list[tuple[str, str]]:
    found = []
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += _keys(kind, f"{prefix}{name}.")
            continue
        choices = [str(choice) for choice in get_args(kind) if isinstance(choice, str)]
        about = info.description or ""
        if choices:
            about += f" [{' | '.join(choices)}]"
        found.append((f"{prefix}{name}", f"{about} (default: {info.get_default(call_default_factory=True)})"))
    return found
