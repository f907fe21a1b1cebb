"""The questions turned round: how much fits? `limit` is what the allocator may hold, bytes. For the worker's phase.

Reserved memory grows with the shape, but for steps of a segment: each answer is searched by halves, and the next larger
shape is known not to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pilotkit.errors import PilotkitError
from pilotkit.estimate.grid import Grid
from pilotkit.estimate.predict import Estimator
from pilotkit.estimate.trace import trace_fake

MAX_MICRO_BATCH = 1 << 14
MAX_SEQ_LEN = 1 << 22
Held = Callable[[int, int], int]
"""Bytes that the allocator holds at a micro-batch size and a sequence length."""


def held_of(estimator: Estimator, grid: Grid | None, *, allocator: str) -> Held:
    """`allocator`: native, expandable, or none (a processor: what is allocated). Without a grid all is traced."""

    def held(micro_batch_size: int, seq_len: int) -> int:
        if grid is not None:
            if allocator == "none":
                sizes, lengths = np.array([micro_batch_size], np.float64), np.array([seq_len], np.float64)
                return round(float(grid.peak_allocated_bytes(sizes, lengths)[0]))
            return grid.peak_reserved_bytes(
                micro_batch_size=micro_batch_size, seq_len=seq_len, expandable=allocator == "expandable"
            )
        found = estimator.predict(micro_batch_size=micro_batch_size, seq_len=seq_len)
        if allocator == "none":
            return found.peak_allocated_bytes
        return (found.expandable if allocator == "expandable" else found.native).peak_reserved_bytes

    return held


def largest(fits: Callable[[int], bool], *, most: int) -> int:
    """The largest number up to `most` that fits, where smaller ones do too; 0 when not even 1 does."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest_micro_batch(held: Held, seq_len: int, *, limit: float) -> dict[str, Any]:
    """The largest micro-batch for one sequence length, and what it holds; 0 when one row is too much."""
    found = largest(lambda size: held(size, seq_len) <= limit, most=MAX_MICRO_BATCH)
    return {
        "seq_len": seq_len,
        "micro_batch_size": found,
        "held_bytes": held(found, seq_len) if found else None,
        "bounded_by": "the search" if found == MAX_MICRO_BATCH else "memory",
    }


def longest_sequence(held: Held, micro_batch_size: int, *, limit: float, estimator: Estimator) -> dict[str, Any]:
    """The longest sequence for one micro-batch size, tokens. Tried there once: a model may take fewer tokens than its
    memory would (learned positions), and then the answer is the longest that it does take."""
    found = largest(lambda length: held(micro_batch_size, length) <= limit, most=MAX_SEQ_LEN)
    bounded_by = "the search" if found == MAX_SEQ_LEN else "memory"
    if found and not _takes(estimator, micro_batch_size, found):
        found = largest(lambda length: _takes(estimator, micro_batch_size, length), most=found)
        bounded_by = "the model"
    return {
        "micro_batch_size": micro_batch_size,
        "seq_len": found,
        "held_bytes": held(micro_batch_size, found) if found else None,
        "bounded_by": bounded_by,
    }


def _takes(estimator: Estimator, micro_batch_size: int, seq_len: int) -> bool:
    """Whether the model accepts rows of this length; its first repeated unit is enough to see it."""
    source = estimator.source
    try:
        trace_fake(source, micro_batch_size=micro_batch_size, seq_len=seq_len, num_blocks=source.period or None)
    except PilotkitError:
        return False
    return True


def device_counts(*, most: int, devices_per_node: int) -> Iterator[int]:
    """Powers of two within a node, then whole nodes, doubled each time."""
    count = 1
    while count <= most:
        yield count
        count = min(2 * count, devices_per_node) if count < devices_per_node else 2 * count
