"""Whole predictions of many shapes from a few small traces: what a sweep over micro-batch size and length asks.

Called by the worker's phase. Memory is that of `grid.fit`. What a step computes, moves and sends is summed by kind, and
each sum is a polynomial in the same terms (the FLOPs of attention grow with B and S^2); it is fitted to the same traces
and checked at the same held-out shape. Raises NotAffine where either does not hold: the caller traces each shape then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pilotkit.estimate.grid import (
    HELD_OUT_ROWS,
    HELD_OUT_SEQ_LEN,
    MANY,
    ONE,
    ONE_ROW,
    ROWS,
    Basis,
    Fit,
    Floats,
    NotAffine,
    ShortTraces,
    fit,
    shapes_for,
    terms_of,
)
from pilotkit.estimate.helper import Helper
from pilotkit.estimate.notes import notes_of
from pilotkit.estimate.predict import Estimator, Shape, prediction_of, work_of

Work = Mapping[str, Sequence[Mapping[str, Any]]]
"""As `predict.work_of` gives it."""
SUMS = {"kernels": ("num_flops", "num_bytes"), "collectives": ("num_bytes",)}
"""What grows with the shape in each of its lines; the rest is the same at every shape."""


@dataclass(frozen=True)
class WorkFit:
    """The work of one step at any shape."""

    basis: Basis
    pattern: Work
    coefficients: Floats
    """(sums, terms): of each sum of the pattern, in its order."""

    def at(self, micro_batch_size: int, seq_len: int) -> dict[str, list[dict[str, Any]]]:
        """As `predict.work_of` of a trace at that shape."""
        terms = terms_of(self.basis, np.array([micro_batch_size]), np.array([seq_len]))[0]
        values = iter(np.rint(self.coefficients @ terms).tolist())
        return {
            part: [{**line, **{name: type(line[name])(next(values)) for name in names}} for line in self.pattern[part]]
            for part, names in SUMS.items()
        }


@dataclass(frozen=True)
class Kind:
    """Points that one fit serves: those of one row, or those of several."""

    fit: Fit
    work: WorkFit
    notes: tuple[str, ...]

    def predict(self, micro_batch_size: int, seq_len: int, *, num_params: int) -> dict[str, Any]:
        """As `Prediction.to_dict` of a trace at that shape."""
        trace, work = self.fit.trace_at(micro_batch_size, seq_len), self.work.at(micro_batch_size, seq_len)
        return prediction_of(trace, work, num_params=num_params, notes=self.notes).to_dict()


@dataclass(frozen=True)
class Points:
    """What every shape's prediction is made of. Made by `fit_points`; plain data, for a helper."""

    one: Kind
    many: Kind
    num_params: int

    def predict(self, micro_batch_size: int, seq_len: int) -> dict[str, Any]:
        """As `Prediction.to_dict` of a trace at that shape."""
        kind = self.one if micro_batch_size == 1 else self.many
        return kind.predict(micro_batch_size, seq_len, num_params=self.num_params)


def fit_points(estimator: Estimator) -> Points:
    """Raises NotAffine, and EstimateError as a trace does."""
    short = ShortTraces(estimator, counts_operators=True)
    grid = fit(estimator, short)
    # Sums of FLOPs need the larger basis, whatever memory needs: attention that keeps no scores computes them all.
    one = _fit_work(short, ONE[-1], batches=ONE_ROW, held_out=(1, HELD_OUT_SEQ_LEN))
    many = _fit_work(short, MANY[-1], batches=ROWS, held_out=(HELD_OUT_ROWS, HELD_OUT_SEQ_LEN))
    workload = estimator.workload
    return Points(
        Kind(grid.one, one, notes_of(workload, grid.one.trace)),
        Kind(grid.many, many, notes_of(workload, grid.many.trace)),
        estimator.source.num_params,
    )


def predict_all(points: Points, shapes: Sequence[Shape], *, helper: Helper | None = None) -> list[dict[str, Any]]:
    """Each of the shapes, in their order; half of them by the helper."""
    half = len(shapes) // 2 if helper is not None else 0
    future = helper.submit(predict_all, points, shapes[:half]) if helper is not None and half else None
    found = [points.predict(*shape) for shape in shapes[half:]]
    if future is None:
        return found
    helped = predict_all(points, shapes[:half]) if future.exception() is not None else future.result()
    return [*helped, *found]


def _fit_work(short: ShortTraces, basis: Basis, *, batches: Sequence[int], held_out: Shape) -> WorkFit:
    fitted = shapes_for(basis, batches)
    traces = short.of([*fitted, held_out])
    works = [
        work_of(short.estimator.deepen(trace, shape=shape)[0])
        for trace, shape in zip(traces, [*fitted, held_out], strict=True)
    ]
    pattern = works[0]
    if any(_constant(work) != _constant(pattern) for work in works[1:]):
        raise NotAffine("the kernels differ between shapes")
    sums = np.array([list(_sums(work)) for work in works], dtype=np.float64)
    points = np.array(fitted, dtype=np.float64)
    coefficients = np.linalg.solve(terms_of(basis, points[:, 0], points[:, 1]), sums[:-1]).T
    found = WorkFit(basis, pattern, coefficients)
    if not np.allclose(list(_sums(found.at(*held_out))), sums[-1], rtol=1e-9, atol=1.0):
        raise NotAffine("a shape that was not fitted computes or moves otherwise")
    return found


def _sums(work: Work) -> Iterator[float]:
    return (line[name] for part, names in SUMS.items() for line in work[part] for name in names)


def _constant(work: Work) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in line.items() if name not in names}
        for part, names in SUMS.items()
        for line in work[part]
    ]
