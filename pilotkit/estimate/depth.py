"""From a trace of three repeated units to one of any depth: what the middle unit does, every further one does.

Called by `predict`. A unit is the shortest run of blocks that repeats (one block, or a few where kinds alternate). The
expansion of three units to four is compared with a real trace of four before any other depth is believed; `expand`
raises NotRepeating where the events do not repeat, and the caller traces the whole depth then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pilotkit.estimate.events import NO_BLOCK, Event, Trace

UNITS = 3
MIDDLE, LAST = 1, 2
_Run = tuple[int, list[int]]
"""A unit (or NO_BLOCK) and the indices of consecutive events in it."""


_Place = tuple[int, str, int]
"""Step, moment, and how many allocations of the unit came before in them."""


class NotRepeating(Exception):
    """The events of this model at one depth do not follow from another depth."""


@dataclass(frozen=True)
class Expansion:
    """Events of a deeper trace: the event that each copies, the unit it is in, and its tensor."""

    sources: list[int]
    units: list[int]
    tensors: list[int]
    kinds: dict[int, str]
    initial: dict[int, tuple[str, int]]


def expand(trace: Trace, *, num_units: int, period: int = 1) -> Expansion:
    """`trace` has three units of `period` blocks each. Raises NotRepeating when a free cannot be told apart."""
    assert num_units >= UNITS, num_units
    return _Expander(trace, num_units=num_units, period=period).run()


def rebuild(trace: Trace, expansion: Expansion, *, num_units: int, period: int = 1) -> Trace:
    """The deeper trace itself; sizes that grow with depth outside of the blocks are those of `trace`."""
    events = []
    for source, unit, tensor in zip(expansion.sources, expansion.units, expansion.tensors, strict=True):
        event = trace.events[source]
        offset = event.block % period if event.block != NO_BLOCK else 0
        block = NO_BLOCK if unit == NO_BLOCK else unit * period + offset
        events.append(
            Event(tensor, event.num_bytes, event.step, event.moment, block, event.stream, event.operator),
        )
    return dataclasses.replace(
        trace,
        initial=expansion.initial,
        events=events,
        kinds=expansion.kinds,
        operators=[item for item in trace.operators for _ in _copies(item.block, num_units, period)],
        collectives=[
            dataclasses.replace(item, block=block)
            for item in trace.collectives
            for block in _copies(item.block, num_units, period)
        ],
        num_blocks=num_units * period,
    )


def growth_outside(three: Trace, four: Trace) -> list[int]:
    """Bytes that each event of three units grows by with a further unit: outside of the blocks there are lists (norms).

    Raises NotRepeating when the events outside of the blocks are not the same in both.
    """
    outside = [event for event in four.events if event.block == NO_BLOCK]
    if len(outside) != sum(event.block == NO_BLOCK for event in three.events):
        raise NotRepeating("outside of the blocks, the number of events depends on their number")
    grown = iter(outside)
    return [next(grown).num_bytes - event.num_bytes if event.block == NO_BLOCK else 0 for event in three.events]


def _copies(block: int, num_units: int, period: int) -> Iterator[int]:
    if block == NO_BLOCK:
        yield NO_BLOCK
        return
    unit, offset = divmod(block, period)
    units: Sequence[int] = range(1, num_units - 1) if unit == MIDDLE else [0 if unit == 0 else num_units - 1]
    for copy in units:
        yield copy * period + offset


class _Expander:
    def __init__(self, trace: Trace, *, num_units: int, period: int) -> None:
        self._trace = trace
        self._num_units = num_units
        self._period = period
        self._events = trace.events
        self._home: dict[int, int] = {}
        """Unit in which each tensor was made, by its number in the trace."""
        self._twins: dict[tuple[int, int, str, int, str | None], list[tuple[int, int]]] = {}
        """(unit, step, moment, bytes, kind) -> (place, tensor): one place of two units, one tensor for the other."""
        self._place: dict[int, _Place] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        """(tensor of the trace, unit of the copy) -> tensor of the expansion."""
        self._counts: dict[tuple[int, int, str], int] = {}
        self._sizes = {event.tensor: event.num_bytes for event in trace.events if event.num_bytes > 0}
        self._sizes |= {number: num_bytes for number, (_, num_bytes) in trace.initial.items()}
        self._next = 0

    def run(self) -> Expansion:
        runs = list(self._runs())
        self._find_places()
        initial = self._initial()
        sources: list[int] = []
        units: list[int] = []
        tensors: list[int] = []
        kinds: dict[int, str] = {}
        for position, (unit, indices) in enumerate(runs):
            for copy in self._order(runs, position) if unit == MIDDLE else [self._outer(unit)]:
                for index in indices:
                    event = self._events[index]
                    tensor = self._tensor(event, unit=unit, copy=copy)
                    sources.append(index)
                    units.append(copy)
                    tensors.append(tensor)
                    if event.tensor in self._trace.kinds:
                        kinds[tensor] = self._trace.kinds[event.tensor]
        return Expansion(sources, units, tensors, kinds, initial)

    def _unit_of(self, block: int) -> int:
        return NO_BLOCK if block == NO_BLOCK else block // self._period

    def _outer(self, unit: int) -> int:
        return self._num_units - 1 if unit == LAST else unit

    def _runs(self) -> Iterator[_Run]:
        """Consecutive events of one unit in one part of a step."""
        start = 0
        for index in range(1, len(self._events) + 1):
            if index == len(self._events) or self._edge(self._events[index - 1], self._events[index]):
                yield self._unit_of(self._events[start].block), list(range(start, index))
                start = index

    def _edge(self, before: Event, after: Event) -> bool:
        return (before.step, before.moment, self._unit_of(before.block)) != (
            after.step,
            after.moment,
            self._unit_of(after.block),
        )

    def _order(self, runs: list[_Run], position: int) -> Iterator[int]:
        """Copies of the middle unit upward in forward, downward in backward: as its neighbours stand."""
        before = next((unit for unit, _ in reversed(runs[:position]) if unit not in (NO_BLOCK, MIDDLE)), None)
        after = next((unit for unit, _ in runs[position + 1 :] if unit not in (NO_BLOCK, MIDDLE)), None)
        neighbours = [unit for unit, _ in runs[max(position - 1, 0) : position]]
        downward = before == LAST and (after == 0 or neighbours == [LAST])
        copies = range(1, self._num_units - 1)
        yield from (reversed(copies) if downward else copies)

    def _find_places(self) -> None:
        for number, block in self._trace.initial_blocks.items():
            unit = self._unit_of(block)
            self._settle(number, unit, step=-1, moment="")
        for event in self._events:
            if event.num_bytes > 0:
                self._settle(event.tensor, self._unit_of(event.block), step=event.step, moment=event.moment)

    def _settle(self, tensor: int, unit: int, *, step: int, moment: str) -> None:
        count = self._counts[unit, step, moment] = self._counts.get((unit, step, moment), -1) + 1
        self._home[tensor] = unit
        self._place[tensor] = (step, moment, count)
        self._twins.setdefault((unit, step, moment, *self._sort(tensor)), []).append((count, tensor))

    def _sort(self, tensor: int) -> tuple[int, str | None]:
        """Bytes and kind: a gradient is no twin of a buffer of its size."""
        return self._sizes[tensor], self._trace.kinds.get(tensor)

    def _initial(self) -> dict[int, tuple[str, int]]:
        """Tensors that were there before, those of the middle unit once for each copy."""
        initial: dict[int, tuple[str, int]] = {}
        for number, (kind, num_bytes) in self._trace.initial.items():
            unit = self._home[number]
            for copy in range(1, self._num_units - 1) if unit == MIDDLE else [self._outer(unit)]:
                initial[self._made(number, copy)] = (kind, num_bytes)
        return initial

    def _made(self, tensor: int, copy: int) -> int:
        self._next += 1
        self._numbers[tensor, copy] = self._next
        return self._next

    def _tensor(self, event: Event, *, unit: int, copy: int) -> int:
        if event.num_bytes > 0:
            return self._made(event.tensor, copy)
        home = self._home[event.tensor]
        tensor, at = event.tensor, self._outer(home)
        if home != NO_BLOCK and unit != NO_BLOCK:
            # A neighbour's tensor is that of the copy's own neighbour.
            at = copy + home - unit if abs(home - unit) <= 1 else self._outer(home)
            tensor = self._twin(event.tensor, unit=home, at=at)
        elif home == MIDDLE:
            raise NotRepeating("a tensor of a block is freed outside of all blocks")
        if (tensor, at) not in self._numbers:
            # The first and the last unit may differ from those between (nothing to gather ahead): a tensor of the
            # same size then stands for the one that would have been there.
            tensor, at = self._alike(event.tensor, num_bytes=-event.num_bytes)
        return self._numbers.pop((tensor, at))

    def _alike(self, freed: int, *, num_bytes: int) -> tuple[int, int]:
        """The newest tensor of a block that is still there and has this size, of this kind if there is one."""
        kind, newest = self._trace.kinds.get(freed), None
        for tensor, copy in reversed(self._numbers):
            if copy != NO_BLOCK and self._sizes.get(tensor) == num_bytes:
                if self._trace.kinds.get(tensor) == kind:
                    return tensor, copy
                newest = newest or (tensor, copy)
        if newest is None:
            raise NotRepeating(f"a free of {num_bytes} bytes has no allocation")
        return newest

    def _twin(self, tensor: int, *, unit: int, at: int) -> int:
        """The tensor of the trace that stands for `tensor` of `unit` in the unit `at` of the expansion."""
        wanted = 0 if at == 0 else LAST if at == self._num_units - 1 else MIDDLE
        if wanted == unit:
            return tensor
        step, moment, count = self._place[tensor]
        alike = self._twins.get((wanted, step, moment, *self._sort(tensor)), ())
        return min(((abs(place - count), twin) for place, twin in alike), default=(0, tensor))[1]
