"""Batch arithmetic: how ranks, micro-batches and accumulation make one optimizer step of the intended run.

    global_batch_size == micro_batch_size * grad_accum_steps * dp_degree
    world_size        == num_nodes * nproc_per_node == dp_replicate * dp_shard == dp_degree

Checked here and nowhere else. What the user left out is derived; what they gave is never changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pilotkit.config.schema import PilotConfig
from pilotkit.errors import Problem


@dataclass(frozen=True)
class BatchArithmetic:
    """The factors of one optimizer step. Sizes count rows (sequences); `num_steps` is rounded up."""

    world_size: int
    nproc_per_node: int
    dp_replicate: int
    dp_shard: int
    grad_accum_steps: int
    global_batch_size: int
    tokens_per_step: int
    num_steps: int

    @property
    def dp_degree(self) -> int:
        return self.dp_replicate * self.dp_shard


def batch_arithmetic(config: PilotConfig) -> BatchArithmetic:
    """Derive every factor of a configuration that `check_batch` found sound."""
    nproc_per_node, world_size = _world(config)
    dp_replicate, dp_shard = _mesh(config, world_size=world_size, nproc_per_node=nproc_per_node)
    train = config.train
    rows_per_pass = train.micro_batch_size * world_size
    if train.grad_accum_steps is not None:
        grad_accum_steps = train.grad_accum_steps
    elif train.global_batch_size is not None:
        grad_accum_steps = train.global_batch_size // rows_per_pass
    else:
        grad_accum_steps = 1
    global_batch_size = rows_per_pass * grad_accum_steps
    tokens_per_step = global_batch_size * train.seq_len
    return BatchArithmetic(
        world_size=world_size,
        nproc_per_node=nproc_per_node,
        dp_replicate=dp_replicate,
        dp_shard=dp_shard,
        grad_accum_steps=grad_accum_steps,
        global_batch_size=global_batch_size,
        tokens_per_step=tokens_per_step,
        num_steps=math.ceil(train.total_tokens / tokens_per_step),
    )


def largest_part(size: int) -> int:
    """The largest equal part of `size` ranks that is not all of them: half where that is whole, 1 of a prime."""
    return next((part for part in range(size // 2, 1, -1) if size % part == 0), 1)


def check_batch(config: PilotConfig) -> list[Problem]:
    """Everything that does not multiply; each message prints every factor."""
    train, parallelism = config.train, config.parallelism
    factors = (
        *(config.hardware.device_count, parallelism.num_nodes, parallelism.nproc_per_node),
        *(parallelism.dp_replicate, parallelism.dp_shard, train.micro_batch_size, train.grad_accum_steps),
    )
    if any(factor is not None and factor < 1 for factor in factors):
        return []  # their ranges are told; nothing can be said about a product with them
    return [*_check_mesh(config), *_check_global_batch(config)]


def _world(config: PilotConfig) -> tuple[int, int]:
    parallelism = config.parallelism
    nproc_per_node = parallelism.nproc_per_node or config.hardware.device_count
    return nproc_per_node, nproc_per_node * parallelism.num_nodes


def _mesh(config: PilotConfig, *, world_size: int, nproc_per_node: int) -> tuple[int, int]:
    """`dp_replicate` and `dp_shard`; what is not given follows from the strategy (HSDP: shard within a node)."""
    parallelism = config.parallelism
    replicate, shard = parallelism.dp_replicate, parallelism.dp_shard
    if parallelism.strategy in ("single", "ddp"):
        shard = shard or 1
    elif parallelism.strategy == "fsdp":
        replicate = replicate or 1
    elif replicate is None and shard is None:
        # One node has nothing to shard within and replicate across, unless it is divided.
        shard = nproc_per_node if parallelism.num_nodes > 1 else largest_part(nproc_per_node)
    if replicate is None:
        replicate = max(world_size // (shard or 1), 1)
    if shard is None:
        shard = max(world_size // replicate, 1)
    return replicate, shard


def _check_mesh(config: PilotConfig) -> list[Problem]:
    parallelism = config.parallelism
    nproc_per_node, world_size = _world(config)
    replicate, shard = _mesh(config, world_size=world_size, nproc_per_node=nproc_per_node)
    shown_world = f"num_nodes {parallelism.num_nodes} x nproc_per_node {nproc_per_node} = {world_size}"
    problems = []
    if parallelism.strategy == "single" and world_size != 1:
        problems.append(
            Problem(
                "parallelism.strategy",
                "single",
                f"a world size of 1; here {shown_world}",
                "set parallelism.num_nodes=1 parallelism.nproc_per_node=1, or choose parallelism=ddp",
                ("parallelism.num_nodes", "parallelism.nproc_per_node", "hardware.device_count"),
            )
        )
    elif replicate * shard != world_size:
        given = "dp_replicate" if parallelism.dp_replicate else "dp_shard"
        problems.append(
            Problem(
                f"parallelism.{given}",
                getattr(parallelism, given),
                "dp_replicate * dp_shard == num_nodes * nproc_per_node; "
                f"here {replicate} x {shard} = {replicate * shard}, and {shown_world}",
                "give only one of parallelism.dp_replicate and parallelism.dp_shard, one that divides the world size",
                (
                    "parallelism.dp_replicate",
                    "parallelism.dp_shard",
                    "parallelism.num_nodes",
                    "parallelism.nproc_per_node",
                    "hardware.device_count",
                ),
            )
        )
    if parallelism.strategy == "ddp" and shard > 1:
        problems.append(_wrong_axis("dp_shard", shard, "ddp", "1, as DDP shards nothing"))
    if parallelism.strategy == "fsdp" and replicate > 1:
        problems.append(_wrong_axis("dp_replicate", replicate, "fsdp", "1, as FSDP shards over every rank"))
    return problems


def _wrong_axis(axis: str, value: int, strategy: str, allowed: str) -> Problem:
    return Problem(
        f"parallelism.{axis}",
        value,
        f"{allowed} (parallelism.strategy={strategy})",
        f"leave parallelism.{axis} out, or choose parallelism=hsdp",
        ("parallelism.strategy",),
    )


def _check_global_batch(config: PilotConfig) -> list[Problem]:
    train = config.train
    if train.global_batch_size is None:
        return []
    _, world_size = _world(config)
    per_pass = train.micro_batch_size * world_size
    factors = (
        "train.micro_batch_size",
        "train.grad_accum_steps",
        "parallelism.num_nodes",
        "parallelism.nproc_per_node",
        "hardware.device_count",
    )
    shown = f"micro_batch_size {train.micro_batch_size} x grad_accum_steps {{steps}} x dp_degree {world_size}"
    if train.grad_accum_steps is not None:
        product = per_pass * train.grad_accum_steps
        if product == train.global_batch_size:
            return []
        return [
            Problem(
                "train.global_batch_size",
                train.global_batch_size,
                f"{product} = {shown.format(steps=train.grad_accum_steps)}",
                f"set train.global_batch_size={product}, or leave one of the two out to have it derived",
                factors,
            )
        ]
    if train.global_batch_size % per_pass == 0:
        return []
    lower = train.global_batch_size // per_pass * per_pass
    nearest = " or ".join(str(value) for value in (lower, lower + per_pass) if value)
    return [
        Problem(
            "train.global_batch_size",
            train.global_batch_size,
            f"a multiple of {per_pass} = micro_batch_size {train.micro_batch_size} x dp_degree {world_size}",
            f"set train.global_batch_size={nearest}, or change train.micro_batch_size",
            factors,
        )
    ]
