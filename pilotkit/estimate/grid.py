"""Peak memory for whole grids of micro-batch size and sequence length, from a few small traces.

Called by the worker's phase. The size of every allocation is a polynomial in micro-batch size B and sequence length S:
1, B, S, BS, and S^2, BS^2 where attention keeps its scores. `fit` finds it for each event, checks it against
a trace of a shape that was not fitted, and raises NotAffine where events differ between shapes: the caller traces every
point then. Peaks of any number of points are one matrix product over the few events that can hold a peak.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from pilotkit.estimate.allocator import Request, replay
from pilotkit.estimate.depth import NotRepeating
from pilotkit.estimate.events import Event, Trace
from pilotkit.estimate.helper import Helper
from pilotkit.estimate.predict import Estimator, Shape, requests

Basis = tuple[tuple[int, int], ...]
"""Powers of B and S."""
ONE: tuple[Basis, ...] = (((0, 0), (0, 1)), ((0, 0), (0, 1), (0, 2)))
MANY: tuple[Basis, ...] = (
    ((0, 0), (1, 0), (0, 1), (1, 1)),
    ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)),
)
"""A batch of one spares copies that more rows need, so it has a fit of its own. In each, the larger basis is tried
where the smaller does not hold."""
LATTICE = 32
"""Kernels round lengths up to multiples of this (the statistics of memory-efficient attention), which is no polynomial:
the fit speaks of these lengths alone."""
UNIT_SEQ_LEN = 64
HELD_OUT_SEQ_LEN = 5 * UNIT_SEQ_LEN
ONE_ROW, ROWS, HELD_OUT_ROWS = (1,), (2, 3), 5
MAX_MICRO_BATCH = 1 << 14
Floats = NDArray[np.float64]


class NotAffine(Exception):
    """Events differ between shapes, or a size is no polynomial of them."""


@dataclass(frozen=True)
class Fit:
    """Sizes of every event of the whole depth as polynomials."""

    trace: Trace
    basis: Basis
    sizes: Floats
    """(events, terms): bytes of each event, frees negative."""
    live: Floats
    """(rows, terms): bytes that are live after the events that can be a peak."""

    def event_bytes(self, micro_batch_size: int, seq_len: int) -> list[int]:
        """Bytes of each event at one point."""
        terms = terms_of(self.basis, np.array([micro_batch_size]), np.array([seq_len]))[0]
        sizes: list[int] = np.rint(self.sizes @ terms).astype(np.int64).tolist()
        return sizes

    def trace_at(self, micro_batch_size: int, seq_len: int) -> Trace:
        """The whole depth's trace at one point; its operators are those of the shape that was traced."""
        sizes = self.event_bytes(micro_batch_size, seq_len)
        events = [event._replace(num_bytes=size) for event, size in zip(self.trace.events, sizes, strict=True)]
        return dataclasses.replace(self.trace, events=events)

    @cached_property
    def _asked(self) -> tuple[list[Request], list[int], list[int]]:
        """What is the same at every point: what was there before, and each event's tensor and stream."""
        events = self.trace.events
        before = requests(dataclasses.replace(self.trace, events=[]))
        return before, [event.tensor for event in events], [event.stream for event in events]

    def requests(self, micro_batch_size: int, seq_len: int) -> Iterator[Request]:
        """What the allocator is asked at one point; no events are made for it, as a grid asks hundreds of times."""
        before, tensors, streams = self._asked
        return chain(before, zip(tensors, self.event_bytes(micro_batch_size, seq_len), streams, strict=True))

    def peaks(self, batches: Floats, lengths: Floats) -> Floats:
        """(points,): the highest of the rows."""
        terms = terms_of(self.basis, batches, lengths)
        highest: Floats = terms @ self.live[0]
        for row in self.live[1:]:
            np.maximum(highest, terms @ row, out=highest)
        return highest


@dataclass(frozen=True)
class Grid:
    """Every point of micro-batch size and sequence length. Made by `fit`."""

    one: Fit
    many: Fit

    def fit_of(self, micro_batch_size: int) -> Fit:
        """The fit that holds for a batch of so many rows."""
        return self.one if micro_batch_size == 1 else self.many

    def peak_allocated_bytes(self, micro_batch_sizes: Floats, seq_lens: Floats) -> Floats:
        """Peaks of points, (points,) each, over both steps and the evaluation."""
        batches, lengths = np.asarray(micro_batch_sizes, np.float64), np.asarray(seq_lens, np.float64)
        peaks = self.many.peaks(batches, lengths)
        alone = batches == 1
        if alone.any():
            peaks[alone] = self.one.peaks(batches[alone], lengths[alone])
        return peaks

    def all_peak_reserved_bytes(
        self, shapes: Sequence[Shape], *, expandable: bool, helper: Helper | None = None
    ) -> list[int]:
        """Many points through the allocator, half of them by the helper."""
        half = len(shapes) // 2 if helper is not None else 0
        future = helper.submit(self.all_peak_reserved_bytes, shapes[:half], expandable=expandable) if helper else None
        found = [
            self.peak_reserved_bytes(micro_batch_size=batch, seq_len=seq_len, expandable=expandable)
            for batch, seq_len in shapes[half:]
        ]
        if future is None:
            return found
        if future.exception() is not None:
            return self.all_peak_reserved_bytes(shapes[:half], expandable=expandable) + found
        return [*future.result(), *found]

    def peak_reserved_bytes(self, *, micro_batch_size: int, seq_len: int, expandable: bool) -> int:
        """One point through the allocator."""
        found = self.fit_of(micro_batch_size)
        return replay(found.requests(micro_batch_size, seq_len), expandable=expandable).peak_reserved_bytes

    def largest_micro_batch(self, seq_len: int, *, limit_bytes: float) -> int:
        """The largest micro-batch size whose allocated peak stays within the limit; 0 when not even 1 does."""
        sizes = np.arange(1, MAX_MICRO_BATCH + 1, dtype=np.float64)
        fits = self.peak_allocated_bytes(sizes, np.full_like(sizes, seq_len)) <= limit_bytes
        return int(sizes[fits][-1]) if fits.any() else 0


def holds_at(seq_len: int) -> bool:
    """Whether a fit speaks of this length; another one has to be traced."""
    return seq_len % LATTICE == 0


def fit(estimator: Estimator, traces: ShortTraces | None = None) -> Grid:
    """Trace a few small shapes, or take them from `traces`, and fit. Raises NotAffine, and EstimateError as a trace."""
    traces = traces or ShortTraces(estimator)
    try:
        return _fit_grid(traces)
    except NotRepeating:
        estimator.is_expanded = False
        traces.forget()
        return _fit_grid(traces)


def _fit_grid(traces: ShortTraces) -> Grid:
    wanted = [
        *shapes_for(ONE[0], ONE_ROW),
        (1, HELD_OUT_SEQ_LEN),
        *shapes_for(MANY[0], ROWS),
        (HELD_OUT_ROWS, HELD_OUT_SEQ_LEN),
    ]
    traces.of(wanted)
    return Grid(
        _fit_any(traces, ONE, batches=ONE_ROW, held_out=1), _fit_any(traces, MANY, batches=ROWS, held_out=HELD_OUT_ROWS)
    )


class ShortTraces:
    """Short traces by shape, each made once."""

    def __init__(self, estimator: Estimator, *, counts_operators: bool = False) -> None:
        self.estimator = estimator
        self._counts_operators = counts_operators
        self._traces: dict[Shape, Trace] = {}

    def of(self, shapes: Sequence[Shape]) -> list[Trace]:
        missing = [shape for shape in shapes if shape not in self._traces]
        if missing:
            found = self.estimator.short_traces(missing, counts_operators=self._counts_operators)
            self._traces.update(zip(missing, found, strict=True))
        return [self._traces[shape] for shape in shapes]

    def forget(self) -> None:
        """They were short, and have to be of the whole depth."""
        self._traces.clear()


def shapes_for(basis: Basis, batches: Sequence[int]) -> list[Shape]:
    lengths = range(1, max(power for _, power in basis) + 2)
    return [(batch, UNIT_SEQ_LEN * length) for length in lengths for batch in batches]


def _fit_any(traces: ShortTraces, bases: Sequence[Basis], *, batches: Sequence[int], held_out: int) -> Fit:
    for basis in bases:
        try:
            return _fit(traces, basis, batches=batches, held_out=(held_out, HELD_OUT_SEQ_LEN))
        except NotAffine:
            if basis is bases[-1]:
                raise
    raise AssertionError("the last basis raises or returns")


def _fit(short: ShortTraces, basis: Basis, *, batches: Sequence[int], held_out: Shape) -> Fit:
    """Fit the short traces: the depth is what one of them grows to, and the held-out one must grow to the same."""
    fitted = shapes_for(basis, batches)
    traces = short.of([*fitted, held_out])
    first = traces[0]
    for trace in traces[1:]:
        if list(map(_shape_of, trace.events)) != list(map(_shape_of, first.events)):
            raise NotAffine("the operators differ between shapes")
    points = np.array(fitted, dtype=np.float64)
    measured = np.array([[event.num_bytes for event in trace.events] for trace in traces[:-1]], dtype=np.float64)
    coefficients = np.linalg.solve(terms_of(basis, points[:, 0], points[:, 1]), measured)
    # Exact polynomials have exact coefficients in powers of two over the shapes' own products; what is left is noise.
    per_unit = np.where(np.abs(coefficients) < 1e-6, 0.0, coefficients).T
    deep, sources = short.estimator.deepen(first, shape=fitted[0])
    sizes = per_unit[list(sources)]
    grown = zip(deep.events, sources, strict=True)
    sizes[:, 0] += [event.num_bytes - first.events[index].num_bytes for event, index in grown]
    live = np.cumsum(sizes, axis=0)
    live[:, 0] += deep.initial_bytes
    found = Fit(deep, basis, sizes, _candidates(live))
    _check(found, short.estimator.deepen(traces[-1], shape=held_out)[0], shape=held_out)
    return found


def _check(found: Fit, held_out: Trace, *, shape: Shape) -> None:
    if list(map(_shape_of, found.trace.events)) != list(map(_shape_of, held_out.events)):
        raise NotAffine("the depth grows otherwise at a shape that was not fitted")
    if found.event_bytes(*shape) != [event.num_bytes for event in held_out.events]:
        raise NotAffine("a shape that was not fitted has other sizes")


def _candidates(live: Floats) -> Floats:
    """Rows that no other row exceeds in every term: all others are never the peak, as B and S are positive."""
    rows = np.unique(live, axis=0)
    kept: list[Floats] = []
    while len(rows):
        # No other row exceeds the one with the largest sum; what it exceeds is done with.
        highest = rows[np.argmax(rows.sum(axis=1))]
        kept.append(highest)
        rows = rows[(rows > highest).any(axis=1)]
    return np.stack(kept)


def terms_of(basis: Sequence[tuple[int, int]], batches: NDArray[np.generic], lengths: NDArray[np.generic]) -> Floats:
    b, s = batches.astype(np.float64), lengths.astype(np.float64)
    return np.stack([b**first * s**second for first, second in basis], axis=1)


def _shape_of(event: Event) -> tuple[object, ...]:
    return event.step, event.moment, event.block, event.operator, event.tensor, event.num_bytes > 0
