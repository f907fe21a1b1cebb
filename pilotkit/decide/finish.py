"""Time to finish as a distribution: a seeded simulation of steps, saves, failures, lost work and restarts.

Called by stage `plan` through `pilotkit.decide.option`. Follows no single failure through time: with exponential
times between failures the number of failed attempts at a segment is geometric and the time lost in one is an
exponential cut at the segment's length, so whole draws are vectors and 16,384 devices cost no more than one.

    one segment      L = interval + save
    failed attempts  K ~ NegativeBinomial(segments, e^(-rate L))
    failed restarts  J ~ NegativeBinomial(K, e^(-rate R))
    time             before + segments L + sum of K cut exponentials + K restarts + sum of J cut exponentials + after

Its mean is Daly's complete model (FGCS 22(3), 2006), which the tests hold it to.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilotkit.units import DAY

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

NUM_DRAWS = 20_000
HOPELESS_EXPONENT = 20.0
"""A segment that needs e^20 attempts is called endless."""
MANY = 64
"""Sums of more random times than this are drawn from their normal limit."""


@dataclass(frozen=True)
class Work:
    """A run to be finished. Seconds throughout.

    `before_seconds` and `after_seconds` come once and do not fail; `work_seconds` are steps and evaluations, and
    `interval_seconds` of it lie between two saves (None: nothing is ever saved). `speed_sigma` is the standard
    deviation of the logarithm of the run's mean speed, `failure_sigma` that of the failure rate.
    `restart_spread` is the coefficient of variation of one restart. With `rerun_probability` a share of the work,
    anything from none to all, has to be done again.
    """

    work_seconds: float
    interval_seconds: float | None
    save_seconds: float
    restart_seconds: float
    failures_per_second: float
    before_seconds: float = 0.0
    after_seconds: float = 0.0
    speed_sigma: float = 0.0
    failure_sigma: float = 0.0
    restart_spread: float = 0.0
    rerun_probability: float = 0.0

    def changed(self, **values: Any) -> Work:
        """The same run with other values."""
        return dataclasses.replace(self, **values)


@dataclass(frozen=True)
class Finish:
    """Sorted times to finish, seconds; infinite where a draw never ends."""

    seconds: Floats
    num_failures: float
    """Interruptions of a run, mean over the draws that end."""

    def probability(self, seconds: float) -> float:
        """Share of the draws that are done within this time."""
        return float(np.searchsorted(self.seconds, seconds, side="right") / self.seconds.size)

    def quantile(self, share: float) -> float:
        """The time within which this share of the draws is done: the smallest that holds at least so many."""
        index = min(max(math.ceil(share * self.seconds.size) - 1, 0), self.seconds.size - 1)
        return float(self.seconds[index])

    @property
    def mean_seconds(self) -> float:
        return float(self.seconds.mean())

    def curve(self, *, days: float, points: int = 61) -> list[tuple[float, float]]:
        """(days, probability to be done by then), evenly from 0 to `days`."""
        return [(day, self.probability(day * DAY)) for day in np.linspace(0.0, days, points).tolist()]


def simulate(work: Work, *, num_draws: int = NUM_DRAWS, seed: int = 0) -> Finish:
    """Draw the run `num_draws` times. The same work and seed give the same times."""
    assert work.work_seconds > 0, work.work_seconds
    assert work.interval_seconds is None or work.interval_seconds > 0, work.interval_seconds
    rng = np.random.default_rng(seed)
    speed = np.exp(work.speed_sigma * rng.standard_normal(num_draws))
    rates = work.failures_per_second * np.exp(work.failure_sigma * rng.standard_normal(num_draws))
    again = np.where(rng.random(num_draws) < work.rerun_probability, rng.random(num_draws), 0.0)
    interval = work.work_seconds if work.interval_seconds is None else min(work.interval_seconds, work.work_seconds)
    save = 0.0 if work.interval_seconds is None else work.save_seconds
    total = work.work_seconds * (1 + again)
    num_full = np.floor(total / interval * (1 + 1e-12)).astype(np.int64)
    remainder = np.maximum(total - num_full * interval, 0.0)
    spent, failures = _segments(rng, num_full, interval * speed + save, rates, work)
    has_rest = remainder > 1e-9 * interval
    rest, more = _segments(rng, has_rest.astype(np.int64), remainder * speed + save, rates, work)
    seconds = work.before_seconds + spent + rest + work.after_seconds
    ended = np.isfinite(seconds)
    counts = (failures + more)[ended]
    return Finish(np.sort(seconds), float(counts.mean()) if counts.size else math.inf)


def _segments(
    rng: np.random.Generator, num_segments: Counts, lengths: Floats, rates: Floats, work: Work
) -> tuple[Floats, Counts]:
    """Time to get through so many segments in each draw, and the failures on the way."""
    exponents = rates * lengths
    endless = (exponents > HOPELESS_EXPONENT) | (rates * work.restart_seconds > HOPELESS_EXPONENT)
    endless &= num_segments > 0
    open_draws = (num_segments > 0) & (rates > 0) & ~endless
    failed = np.zeros(num_segments.size, dtype=np.int64)
    failed[open_draws] = rng.negative_binomial(num_segments[open_draws], np.exp(-exponents[open_draws]))
    spent = num_segments * lengths + _sum_cut(rng, failed, rates, lengths)
    if work.restart_seconds > 0:
        spent = spent + _sum_restarts(rng, failed, work)
        fixed = np.full(failed.size, work.restart_seconds)
        broken = np.zeros(failed.size, dtype=np.int64)
        some = failed > 0
        broken[some] = rng.negative_binomial(failed[some], np.exp(-rates[some] * work.restart_seconds))
        spent = spent + _sum_cut(rng, broken, rates, fixed)
    return np.where(endless, np.inf, spent), failed


def _sum_cut(rng: np.random.Generator, counts: Counts, rates: Floats, lengths: Floats) -> Floats:
    """For each draw the sum of `counts` exponential times, each given that it is shorter than `lengths`."""
    few, total = _few(counts)
    if few.size:
        cut = -np.expm1(-rates[few] * lengths[few])
        times = -np.log1p(-rng.random(few.size) * cut) / rates[few]
        total += np.bincount(few, weights=times, minlength=counts.size)
    many = np.flatnonzero(counts > MANY)
    if many.size:
        mean, variance = _cut_moments(rates[many] * lengths[many])
        count = counts[many]
        normal = count * mean + np.sqrt(count * variance) * rng.standard_normal(many.size)
        total[many] = np.maximum(normal, 0.0) * lengths[many]
    return total


def _cut_moments(exponents: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of an exponential time cut at length 1, its rate being `exponents`.

    mean = 1/x - 1/(e^x - 1), variance = 1/x^2 - e^x/(e^x - 1)^2; a uniform time where x is small.
    """
    small = exponents < 1e-3
    x = np.where(small, 1.0, exponents)
    mean = np.where(small, 0.5 - exponents / 12, 1 / x - 1 / np.expm1(x))
    variance = np.where(small, 1 / 12, 1 / x**2 - np.exp(-x) / np.expm1(-x) ** 2)
    return mean, variance


def _sum_restarts(rng: np.random.Generator, counts: Counts, work: Work) -> Floats:
    """For each draw the sum of `counts` restarts: gamma times with the given mean and spread."""
    if work.restart_spread == 0:
        return counts.astype(np.float64) * work.restart_seconds
    shape = 1 / work.restart_spread**2
    # A sum of gamma times of one scale is a gamma time: no loop over the restarts is needed.
    total = np.zeros(counts.size)
    some = counts > 0
    total[some] = rng.gamma(shape * counts[some], work.restart_seconds / shape)
    return total


def _few(counts: Counts) -> tuple[NDArray[np.intp], Floats]:
    """The draws with few times to add, each repeated as often as it has, and a place for the sums."""
    some = np.flatnonzero((counts > 0) & (counts <= MANY))
    return np.repeat(some, counts[some]), np.zeros(counts.size)
