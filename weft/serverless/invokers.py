"""Makes the invoker that a configuration names."""

import os

from weft.errors import optional
from weft.serverless.invoker import DEADLINE_SECONDS, InlineInvoker, Invoker
from weft.serverless.placement import PlacingInvoker
from weft.serverless.settings import ExecutorConfig


def make_invoker(
    config: ExecutorConfig, trust: tuple[str, ...] = (), deadline_seconds: float = DEADLINE_SECONDS
) -> Invoker:
    """`trust`: the user's own modules that workers started here may call. `deadline_seconds`: bounds every wait."""
    if config.name == "inline":
        return InlineInvoker()
    with optional(f"executor {config.name}"):
        remote = _make_remote(config, trust, deadline_seconds)
    return PlacingInvoker(remote, config.workers) if config.placement == "auto" else remote


def server_address(address: str) -> str:
    """The address of this server: servers of a run that share a machine use consecutive ports."""
    head, _, port = address.rpartition(":")
    return f"{head}:{int(port) + int(os.environ.get('LOCAL_RANK', '0'))}" if port.isdigit() else address


def _make_remote(config: ExecutorConfig, trust: tuple[str, ...], deadline_seconds: float) -> Invoker:
    as_bfloat16, delay = config.wire == "bfloat16", config.delay_ms / 1000
    if config.name == "pool":
        return _make_pool(config, trust, deadline_seconds)
    if config.name == "ray":
        from weft.serverless.actors import RayInvoker

        return RayInvoker(config.workers, trust)
    if config.mode == "task":
        from weft.serverless.payloads import PayloadInvoker

        return PayloadInvoker(config.function, config.workers, config.endpoint, as_bfloat16, deadline_seconds)
    from weft.serverless.lambdas import LambdaInvoker

    return LambdaInvoker(
        config.function,
        config.workers,
        server_address(config.bind),
        config.endpoint,
        config.lease_seconds,
        as_bfloat16=as_bfloat16,
        delay_seconds=delay,
        max_workers=config.most_workers or config.workers,
        advertise=server_address(config.advertise) if config.advertise is not None else None,
        deadline_seconds=deadline_seconds,
    )


def _make_pool(config: ExecutorConfig, trust: tuple[str, ...], deadline_seconds: float) -> Invoker:
    from weft.serverless.pool import PoolInvoker, run_key

    pool = PoolInvoker(
        config.workers,
        server_address(config.bind),
        run_key(required=config.workers == 0),
        config.wire == "bfloat16",
        config.delay_ms / 1000,
        trust,
        deadline_seconds,
    )
    if config.workers == 0:
        try:
            pool.await_workers()
        except BaseException:
            pool.close()
            raise
    return pool
