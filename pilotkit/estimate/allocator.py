"""Reserved memory: the events of a trace, replayed through a model of torch's caching allocator for accelerators.

Called by `predict` and `grid`. Pools a stream: small (up to 1 MiB, segments of 2 MiB) and large (segments of 20 MiB, or
the size rounded up to 2 MiB from 10 MiB on); best fit, split, merge with free neighbours. Segments are never given
back, as on a device with memory left. Source: c10/cuda/CUDACachingAllocator.cpp of torch 2.13.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from pilotkit.units import MIB

ALIGNMENT = 512
SMALL_SIZE, SMALL_SEGMENT = 1 * MIB, 2 * MIB
LARGE_SEGMENT, MIN_LARGE, ROUND_LARGE = 20 * MIB, 10 * MIB, 2 * MIB
# Far enough apart that no segment reaches the next one.
SEGMENT_SPACING = 1 << 50

Request = tuple[int, int, int]
"""Tensor, bytes (negative: a free), stream."""


@dataclass(frozen=True)
class Replayed:
    """Peaks in bytes: what the allocator holds from the device, and what of it tensors use (rounded up to 512)."""

    peak_reserved_bytes: int
    peak_allocated_bytes: int


def replay(requests: Iterable[Request], *, expandable: bool) -> Replayed:
    """Run allocations and frees in their order. `expandable`: one segment a pool that grows (expandable_segments)."""
    allocator = _Allocator(expandable=expandable)
    for tensor, num_bytes, stream in requests:
        if num_bytes > 0:
            allocator.allocate(tensor, num_bytes, stream=stream)
        else:
            allocator.free(tensor)
    return Replayed(allocator.peak_reserved, allocator.peak_used)


class _Block:
    __slots__ = ("address", "before", "is_free", "next", "pool", "size")

    def __init__(self, address: int, size: int, pool: tuple[int, bool]) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.is_free = False
        self.before: _Block | None = None
        self.next: _Block | None = None


class _Allocator:
    def __init__(self, *, expandable: bool) -> None:
        self._expandable = expandable
        self._free: dict[tuple[int, bool], list[tuple[int, int, _Block]]] = defaultdict(list)
        self._used: dict[int, _Block] = {}
        self._tails: dict[tuple[int, bool], _Block] = {}
        self._segments = 0
        self._reserved = self._in_use = 0
        self.peak_reserved = self.peak_used = 0

    def allocate(self, tensor: int, num_bytes: int, *, stream: int) -> None:
        size = -(-num_bytes // ALIGNMENT) * ALIGNMENT
        pool = (stream, size <= SMALL_SIZE)
        block = self._best_fit(pool, size) or (self._grow(pool, size) if self._expandable else self._new(pool, size))
        rest = block.size - size
        if rest >= ALIGNMENT if self._expandable or pool[1] else rest > SMALL_SIZE:
            self._split(block, size)
        block.is_free = False
        self._used[tensor] = block
        self._in_use += block.size
        self.peak_used = max(self.peak_used, self._in_use)

    def free(self, tensor: int) -> None:
        block = self._used.pop(tensor, None)
        if block is None:
            return
        self._in_use -= block.size
        before, after = block.before, block.next
        if before is not None and before.is_free:
            self._take(before)
            self._merge(before, block)
            block = before
        if after is not None and after.is_free:
            self._take(after)
            self._merge(block, after)
        self._give(block)

    def _best_fit(self, pool: tuple[int, bool], size: int) -> _Block | None:
        blocks = self._free[pool]
        index = bisect.bisect_left(blocks, (size, -1))
        return blocks.pop(index)[2] if index < len(blocks) else None

    def _new(self, pool: tuple[int, bool], size: int) -> _Block:
        if pool[1]:
            segment = SMALL_SEGMENT
        elif size < MIN_LARGE:
            segment = LARGE_SEGMENT
        else:
            segment = -(-size // ROUND_LARGE) * ROUND_LARGE
        self._reserve(segment)
        self._segments += 1
        return _Block(self._segments * SEGMENT_SPACING, segment, pool)

    def _grow(self, pool: tuple[int, bool], size: int) -> _Block:
        """Map pages at the end of the pool's segment: the free tail counts toward what is asked."""
        page = SMALL_SEGMENT if pool[1] else LARGE_SEGMENT
        tail = self._tails.get(pool)
        if tail is not None and tail.is_free:
            self._take(tail)
            more = -(-(size - tail.size) // page) * page
            tail.size += more
            self._reserve(more)
            return tail
        more = -(-size // page) * page
        self._reserve(more)
        if tail is None:
            self._segments += 1
        block = _Block(self._segments * SEGMENT_SPACING if tail is None else tail.address + tail.size, more, pool)
        if tail is not None:
            block.before, tail.next = tail, block
        self._tails[pool] = block
        return block

    def _reserve(self, num_bytes: int) -> None:
        self._reserved += num_bytes
        self.peak_reserved = max(self.peak_reserved, self._reserved)

    def _split(self, block: _Block, size: int) -> None:
        rest = _Block(block.address + size, block.size - size, block.pool)
        rest.before, rest.next = block, block.next
        if block.next is not None:
            block.next.before = rest
        block.next, block.size = rest, size
        if self._tails.get(block.pool) is block:
            self._tails[block.pool] = rest
        self._give(rest)

    def _merge(self, first: _Block, second: _Block) -> None:
        first.size += second.size
        first.next = second.next
        if second.next is not None:
            second.next.before = first
        if self._tails.get(first.pool) is second:
            self._tails[first.pool] = first

    def _give(self, block: _Block) -> None:
        block.is_free = True
        bisect.insort(self._free[block.pool], (block.size, block.address, block))

    def _take(self, block: _Block) -> None:
        block.is_free = False
        blocks = self._free[block.pool]
        del blocks[bisect.bisect_left(blocks, (block.size, block.address))]
