"""Other shapes: at which world sizes and strategies a checkpoint is saved and restored. Called by driver and worker.

Both derive the same pairs from the configuration, so that no list of them has to be handed on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pilotkit.config.batch import batch_arithmetic
from pilotkit.config.schema import PilotConfig


@dataclass(frozen=True, order=True)
class Shape:
    """A strategy over a number of ranks."""

    strategy: str
    world_size: int

    def __str__(self) -> str:
        return f"{self.strategy}-{self.world_size}"


@dataclass(frozen=True)
class Pair:
    """Saved in one shape, restored in another (or the same) one."""

    saved: Shape
    restored: Shape

    def __str__(self) -> str:
        return f"{self.saved} to {self.restored}"


def shape_pairs(config: PilotConfig) -> list[Pair]:
    """Every pair of `restore.world_sizes` under the run's strategy, then of `restore.strategies` at its world size."""
    own = config.parallelism.strategy
    strategy = "ddp" if own == "single" else own
    world_size = batch_arithmetic(config).nproc_per_node
    sizes, strategies = config.restore.world_sizes, config.restore.strategies
    pairs = [Pair(Shape(strategy, one), Shape(strategy, other)) for one in sizes for other in sizes]
    pairs += [
        Pair(Shape(one, world_size), Shape(other, world_size))
        for one in strategies
        for other in strategies
        if one != other
    ]
    return list(dict.fromkeys(pairs))


def rows_per_step(config: PilotConfig) -> int:
    """Rows of one optimizer step that every shape makes of whole micro-batches; the intended run's, or a multiple."""
    micro_batch_size = config.train.micro_batch_size
    return math.lcm(batch_arithmetic(config).global_batch_size, micro_batch_size * common_ranks(config))


def common_ranks(config: PilotConfig) -> int:
    """The least number that every world size of the pairs divides."""
    pairs = shape_pairs(config)
    return math.lcm(1, *(shape.world_size for pair in pairs for shape in (pair.saved, pair.restored)))
