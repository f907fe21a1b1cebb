"""Every seed of a run, derived from one: what the training side draws from, and what the lock lists. Torch-free.

Called by `pilotkit.train.seeding` and by the lock. Draws nothing itself.
"""

from __future__ import annotations

import hashlib
from typing import Any

ORDER, ROW = "order", "row"


def derive_seed(seed: int, *parts: object) -> int:
    """A seed below 2^32 for one purpose, the same on every machine and in every process."""
    text = ":".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")


def derived_seeds(seed: int, *, world_size: int, micro_batch_size: int) -> dict[str, Any]:
    """The seeds that a run of `world_size` ranks starts from, by purpose.

    `ranks` seed python, numpy and torch of each process; `epoch_orders` the permutations of the first two epochs;
    `first_rows` the row that each rank reads first. A row's seed follows from its position in the run, not from the
    loader process that reads it: no two loaders or ranks draw the same, whatever their number.
    """
    return {
        "train": seed,
        "loader": seed,
        "ranks": {f"rank {rank}": seed + rank for rank in range(world_size)},
        "epoch_orders": {f"epoch {epoch}": derive_seed(seed, ORDER, epoch) for epoch in range(2)},
        "first_rows": {f"rank {rank}": derive_seed(seed, ROW, rank * micro_batch_size) for rank in range(world_size)},
    }
