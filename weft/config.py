"""The validated run: every setting with its default, from a YAML file, the command line or Python."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from weft.aggregate import RAW
from weft.disk.reading import read_yaml as read_yaml_file
from weft.errors import UserError
from weft.layers import ModelConfig, check_model, reducer_traits
from weft.partitioning import list_partitioners
from weft.sample import SampleConfig
from weft.serverless.prices import read_prices
from weft.serverless.settings import ExecutorConfig
from weft.strategy import (
    PRESETS,
    ExchangeConfig,
    MemoryConfig,
    check_exchange,
    check_plan,
    make_format,
    resolve_strategy,
)
from weft.training.metrics import check_metric
from weft.training.optim import OptimConfig
from weft.training.ranking import check_rank_metric, is_rank_metric
from weft.training.settings import EdgeConfig, LinkConfig, TrackConfig, TrainConfig


@dataclass(frozen=True)
class Choices:
    """The names that a setting may have, where a registry knows them."""

    names: Callable[[], list[str]]


def partition_methods() -> list[str]:
    return ["auto", *(partitioner.name for partitioner in list_partitioners())]


class PartitionConfig(BaseModel):
    """How a graph that is not partitioned yet is cut."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Annotated[str, Choices(partition_methods)] = Field("auto", description="how vertices are given to parts")
    parts: int | None = Field(None, ge=1, description="how many parts; one per worker unless set")
    presample_epochs: int = Field(3, ge=1, description="epochs of minibatches that are drawn and counted (presample)")


class RunConfig(BaseModel):
    """A run, whole. `weft train CONFIG.yaml` reads it; RUN/config.yaml is one, resolved."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: str = Field("synthetic:demo", description="data set name, graph folder, partition folder, or .npz file")
    run: str | None = Field(None, description="run folder; runs/NAME-MODEL-N unless set")
    strategy: Annotated[str, Choices(lambda: list(PRESETS))] = Field(
        "full", description="preset of the settings of exchange, memory, sample and executor"
    )
    workers: int = Field(1, ge=1, description="processes")
    threads: int | None = Field(None, ge=1, description="threads per worker; the machine's cores shared out unless set")
    seed: int = Field(0, ge=0, description="of weights, dropout and partition")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "cpu", description="where rows live; auto takes a GPU where there is one"
    )
    deadline_seconds: float = Field(300.0, gt=0, description="longest wait for another worker")
    model: ModelConfig = Field(default_factory=ModelConfig)
    optim: OptimConfig = Field(default_factory=OptimConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    exchange: ExchangeConfig = Field(default_factory=ExchangeConfig)
    link: LinkConfig = Field(default_factory=LinkConfig)
    edge: EdgeConfig = Field(default_factory=EdgeConfig)
    sample: SampleConfig = Field(default_factory=SampleConfig)
    memory: MemoryConfig = Field(default_factory=MemoryConfig)
    executor: ExecutorConfig = Field(default_factory=ExecutorConfig)
    partition: PartitionConfig = Field(default_factory=PartitionConfig)
    track: TrackConfig = Field(default_factory=TrackConfig)


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
    check_exchange(config.exchange, reducer_traits(config.model))
    check_plan(config.exchange, config.sample, config.model.layers)
    check_task(config)
    check_executor(config)
    if config.train.metric != "auto":
        check_metric(config.train.metric)
    return config


def device_of(config: RunConfig) -> str:
    """The device that a worker asks for: with auto the CPU, where the run needs it or may come to."""
    if config.device != "auto":
        return config.device
    on_host = config.exchange.plan != "full" or config.train.task != "vertices" or config.executor.pipelines
    return "cpu" if on_host or config.strategy == "auto" else "auto"


def check_task(config: RunConfig) -> None:
    if config.exchange.plan != "full" and config.device == "cuda":
        raise UserError(
            f"plan {config.exchange.plan} samples and trains in host memory: use --set device=cpu, or the full graph "
            f"with device {config.device}"
        )
    if config.train.task == "vertices":
        return
    if config.device == "cuda":
        raise UserError(f"train.task={config.train.task} works in host memory: use --set device=cpu")
    if config.exchange.plan == "split":
        raise UserError(
            "plan split shares a minibatch by the owners of its seeds, and an edge's two ends may have two: use "
            f"--strategy minibatch or batchgnn with train.task={config.train.task}"
        )
    if config.executor.pipelines:
        raise UserError(
            f"executor {config.executor.name} computes losses of vertices' classes: use another strategy than dorylus "
            f"with train.task={config.train.task}"
        )
    if config.train.task == "links":
        _check_links(config)
    elif config.edge.labels is None:
        raise UserError("train.task=edges learns the labels of edges in a file: name it with edge.labels")


def _check_links(config: RunConfig) -> None:
    train, link = config.train, config.link
    if train.metric not in ("auto", "roc_auc") and not is_rank_metric(train.metric):
        raise UserError(f"links are evaluated by roc_auc, mrr or hits@K, not {train.metric}: set train.metric to one")
    check_rank_metric(train.metric, link.eval_negatives)
    if train.select == "loss":
        raise UserError("links are evaluated by train.metric on validation: leave train.select out")
    if train.loss != "auto":
        raise UserError(f"train.loss={train.loss} is for labels that are numbers: leave it out of train.task=links")
    if link.exclude and config.exchange.plan == "full":
        raise UserError(
            "link.exclude leaves edges out of sampled neighbourhoods, and a step over the whole graph learns all: use "
            "--strategy minibatch or batchgnn with it"
        )


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
    if exchange.schedule != "materialised" or make_format(exchange) is not RAW:
        raise UserError(
            f"executor {executor.name} sends rows when an interval has made them, as they are: leave out "
            f"exchange.schedule and exchange.codec"
        )
    if config.device == "cuda" or config.train.precision == "bfloat16":
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
    settings = read_yaml_file(path, "give the path of a YAML config file")
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
        value = _plain_value(text, assignment)
        for name in reversed(key.split(".")):
            value = {name: value}
        settings = merge(settings, value)
    return settings


def _plain_value(text: str, assignment: str) -> Any:
    try:
        value = yaml.safe_load(text) if not set("&*") & set(text) else text  # a pattern, or an alias: text either way
    except (yaml.YAMLError, ValueError):
        return text
    except RecursionError:
        raise UserError(f"--set {assignment[:40]}... is nested too deeply: give a plain value") from None
    return float(text) if isinstance(value, str) and _is_number(text) else value


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


class Setting(NamedTuple):
    """A setting as people look it up; section and name are joined by a dot."""

    key: str
    about: str
    values: str  # those that are allowed
    default: str


def list_settings() -> list[Setting]:
    """Every setting of a run, in the order of the config."""
    return _settings_of(RunConfig, "")


def known_keys() -> dict[str, str]:
    """Every key with what it means, its allowed values and its default."""
    return {one.key: f"{one.about} [{one.values}] (default: {one.default})" for one in list_settings()}


def _settings_of(model: type[BaseModel], prefix: str) -> list[Setting]:
    found = []
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += _settings_of(kind, f"{prefix}{name}.")
            continue
        default = _as_written(info.get_default(call_default_factory=True))
        found.append(Setting(f"{prefix}{name}", info.description or "", _values(info), default))
    return found


_KINDS = {int: "integer", float: "number", str: "text"}
_BOUNDS = {"ge": "{} or more", "gt": "above {}", "le": "at most {}", "lt": "below {}"}  # of pydantic's constraints


def _values(info: FieldInfo) -> str:
    """The allowed values of a setting: names, or a kind of number with its bounds."""
    names = [name for known in info.metadata if isinstance(known, Choices) for name in known.names()]
    if names:
        return " | ".join(names)
    kinds = [text for kind in _alternatives(info.annotation) for text in _kind_texts(kind)]
    bounds = [
        text.format(f"{getattr(limit, name):g}")
        for name, text in _BOUNDS.items()
        for limit in info.metadata
        if hasattr(limit, name)
    ]
    return ", ".join([" | ".join(kinds), *bounds])


def _alternatives(annotation: Any) -> list[Any]:
    """The members of a union, without None, which stands for a setting that is not given."""
    if get_origin(annotation) in (Union, UnionType):
        return [kind for member in get_args(annotation) if member is not NoneType for kind in _alternatives(member)]
    return [annotation]


def _kind_texts(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    if get_origin(kind) is tuple:
        return [f"[{_kind_texts(get_args(kind)[0])[0]}, ...]"]
    return ["true", "false"] if kind is bool else [_KINDS.get(kind, str(kind))]


def _as_written(value: Any) -> str:
    """A value as a config file has it."""
    if value is None or isinstance(value, bool):
        return "unset" if value is None else str(value).lower()
    return str(value)
