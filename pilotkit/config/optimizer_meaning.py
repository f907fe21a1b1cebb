"""What the options of the optimizer say together. Called by `meaning`; returns problems, raises none."""

from __future__ import annotations

from collections.abc import Iterator

from pilotkit.config.schema import PilotConfig
from pilotkit.errors import Problem

EIGHT_BITS = "adamw8bit"
SHARDED = ("fsdp", "hsdp")


def check_optimizer(config: PilotConfig) -> Iterator[Problem]:
    """Decay rates, switches that the optimizer has, and strategies over which its state can be spread."""
    optimizer = config.optimizer
    betas = optimizer.betas
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        yield Problem("optimizer.betas", betas, "two numbers in [0, 1)", "for example optimizer.betas=[0.9,0.95]")
    if optimizer.amsgrad and optimizer.name == "sgd":
        fix = "drop it, or take optimizer=adamw"
        yield Problem("optimizer.amsgrad", True, "false with sgd, which has no second moment", fix, ("optimizer.name",))
    is_8bit, how = optimizer.name == EIGHT_BITS, optimizer.implementation
    if is_8bit != (how == "compiled"):
        allowed = "compiled with adamw8bit" if is_8bit else f"foreach, fused, for_loop with {optimizer.name}"
        fix = "choose the optimizer by optimizer=..., which brings its implementation along"
        yield Problem("optimizer.implementation", how, allowed, fix, ("optimizer.name", "optimizer"))
    if is_8bit:
        yield from _sharded(config)


def _sharded(config: PilotConfig) -> Iterator[Problem]:
    """Which moments have 8 bits depends on the size of a shard, and a scale belongs to 256 elements of one."""
    strategy = config.parallelism.strategy
    if strategy in SHARDED:
        fix = "take parallelism=ddp, or optimizer=adamw, whose state is sharded"
        allowed = "single or ddp with optimizer=adamw8bit: its state could not be put together at another world size"
        yield Problem("parallelism.strategy", strategy, allowed, fix, ("optimizer.name",))
    for stage, strategies in (("pilot", config.pilot.strategies), ("restore", config.restore.strategies)):
        if config.stage in (stage, "all") and set(strategies) & set(SHARDED):
            fix = f"add {stage}.strategies=[ddp]"
            yield Problem(f"{stage}.strategies", strategies, "ddp with optimizer=adamw8bit", fix, ("optimizer.name",))
