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

import numpy as np
from numpy.typing import NDArray

from pilotkit.estimate.allocator import Request, replay
from pilotkit.estimate.events import Event, Trace
from pilotkit.estimate.predict import Estimator, requests

Basis = tuple[tuple[int, int], ...]
"""Powers of B and S."""
ONE: tuple[Basis, ...] = (((0, 0), (0, 1)), ((0, 0), (0, 1), (0, 2)))
MANY: tuple[Basis, ...] = (
    ((0, 0), (1, 0), (0, 1), (1, 1)),
    ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)),
)
"""A batch of one spares copies that more rows need, so it has a fit of its own. In each, the larger basis is tried
where the smaller does not hold."""
UNIT_SEQ_LEN = 64
HELD_OUT_SEQ_LEN = 5 * UNIT_SEQ_LEN
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

    def at(self, micro_batch_size: int, seq_len: int) -> Trace:
        """The trace of one point."""
        events = [
            dataclasses.replace(event, num_bytes=size)
            for event, size in zip(self.trace.events, self.event_bytes(micro_batch_size, seq_len), strict=True)
        ]
        return dataclasses.replace(self.trace, events=events)

    def event_bytes(self, micro_batch_size: int, seq_len: int) -> list[int]:
        """Bytes of each event at one point."""
        terms = _terms(self.basis, np.array([micro_batch_size]), np.array([seq_len]))[0]
        sizes: list[int] = np.rint(self.sizes @ terms).astype(np.int64).tolist()
        return sizes

    def requests(self, micro_batch_size: int, seq_len: int) -> Iterator[Request]:
        """What the allocator is asked at one point; no events are made for it, as a grid asks hundreds of times."""
        yield from requests(dataclasses.replace(self.trace, events=[]))
        for event, size in zip(self.trace.events, self.event_bytes(micro_batch_size, seq_len), strict=True):
            yield event.tensor, size, event.stream

    def peaks(self, batches: Floats, lengths: Floats) -> Floats:
        """(points,): the highest of the rows."""
        terms = _terms(self.basis, batches, lengths)
        highest: Floats = terms @ self.live[0]
        for row in self.live[1:]:
            np.maximum(highest, terms @ row, out=highest)
        return highest


@dataclass(frozen=True)
class Grid:
    """Every point of micro-batch size and sequence length. Made by `fit`."""

    one: Fit
    many: Fit

    def peak_allocated_bytes(self, micro_batch_sizes: Floats, seq_lens: Floats) -> Floats:
        """Peaks of points, (points,) each, over both steps and the evaluation."""
        batches, lengths = np.asarray(micro_batch_sizes, np.float64), np.asarray(seq_lens, np.float64)
        peaks = self.many.peaks(batches, lengths)
        alone = batches == 1
        if alone.any():
            peaks[alone] = self.one.peaks(batches[alone], lengths[alone])
        return peaks

    def peak_reserved_bytes(self, *, micro_batch_size: int, seq_len: int, expandable: bool) -> int:
        """One point through the allocator."""
        found = self.one if micro_batch_size == 1 else self.many
        return replay(found.requests(micro_batch_size, seq_len), expandable=expandable).peak_reserved_bytes

    def largest_micro_batch(self, seq_len: int, *, limit_bytes: float) -> int:
        """The largest micro-batch size whose allocated peak stays within the limit; 0 when not even 1 does."""
        sizes = np.arange(1, MAX_MICRO_BATCH + 1, dtype=np.float64)
        fits = self.peak_allocated_bytes(sizes, np.full_like(sizes, seq_len)) <= limit_bytes
        return int(sizes[fits][-1]) if fits.any() else 0


def fit(estimator: Estimator) -> Grid:
    """Trace a few small shapes and fit. Raises NotAffine, and EstimateError as a trace does."""
    return Grid(
        _fit_any(estimator, ONE, batches=(1,), held_out=1), _fit_any(estimator, MANY, batches=(2, 3), held_out=5)
    )


def _fit_any(estimator: Estimator, bases: Sequence[Basis], *, batches: Sequence[int], held_out: int) -> Fit:
    traces: dict[tuple[int, int], Trace] = {}

    def trace(micro_batch_size: int, seq_len: int) -> Trace:
        key = micro_batch_size, seq_len
        if key not in traces:
            traces[key] = estimator.trace(micro_batch_size=micro_batch_size, seq_len=seq_len)
        return traces[key]

    for basis in bases:
        lengths = range(1, max(power for _, power in basis) + 2)
        shapes = [(batch, UNIT_SEQ_LEN * length) for length in lengths for batch in batches]
        try:
            found = _fit([(shape, trace(*shape)) for shape in shapes], basis)
            _check(found, trace(held_out, HELD_OUT_SEQ_LEN), micro_batch_size=held_out)
        except NotAffine:
            if basis is bases[-1]:
                raise
            continue
        return found
    raise AssertionError("the last basis raises or returns")


def _fit(traces: Sequence[tuple[tuple[int, int], Trace]], basis: Basis) -> Fit:
    first = traces[0][1]
    for _, trace in traces[1:]:
        if list(map(_shape_of, trace.events)) != list(map(_shape_of, first.events)):
            raise NotAffine("the operators differ between shapes")
    shapes = np.array([shape for shape, _ in traces], dtype=np.float64)
    measured = np.array([[event.num_bytes for event in trace.events] for _, trace in traces], dtype=np.float64)
    terms = _terms(basis, shapes[:, 0], shapes[:, 1])
    coefficients = np.linalg.solve(terms, measured)
    # Exact polynomials have exact coefficients in powers of two over the shapes' own products; what is left is noise.
    sizes = np.where(np.abs(coefficients) < 1e-6, 0.0, coefficients).T
    live = np.cumsum(sizes, axis=0)
    live[:, 0] += first.initial_bytes
    return Fit(first, basis, sizes, _candidates(live))


def _check(found: Fit, held_out: Trace, *, micro_batch_size: int) -> None:
    predicted = found.at(micro_batch_size, HELD_OUT_SEQ_LEN)
    if [event.num_bytes for event in predicted.events] != [event.num_bytes for event in held_out.events]:
        raise NotAffine("a shape that was not fitted has other sizes")


def _candidates(live: Floats) -> Floats:
    """Rows that no other row exceeds in every term: all others are never the peak, as B and S are positive."""
    rows = np.unique(live, axis=0)
    rows = rows[np.argsort(-rows.sum(axis=1))]
    kept: list[Floats] = []
    for row in rows:
        if not any(np.all(other >= row) for other in kept):
            kept.append(row)
    return np.stack(kept)


def _terms(basis: Sequence[tuple[int, int]], batches: NDArray[np.generic], lengths: NDArray[np.generic]) -> Floats:
    b, s = batches.astype(np.float64), lengths.astype(np.float64)
    return np.stack([b**first * s**second for first, second in basis], axis=1)


def _shape_of(event: Event) -> tuple[object, ...]:
    return event.step, event.moment, event.block, event.operator, event.tensor, event.num_bytes > 0
