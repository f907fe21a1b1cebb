"""Summary of repeated measurements: middle, tail and spread. Called wherever a list of times becomes a figure.

Never drops a value: what belongs to warm-up is the caller's to say.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """`n` values in their own unit. `stddev` is the sample's (n - 1), 0 for one value.

    `p95` is the 95th percentile; `spread` is the coefficient of variation, stddev / mean (a ratio).
    """

    n: int
    median: float
    mean: float
    p95: float
    minimum: float
    maximum: float
    stddev: float
    spread: float


def summarize(values: Sequence[float]) -> Summary:
    """Summarise at least one finite value. Raises ValueError for none, or for a NaN or an infinity."""
    if not values:
        raise ValueError("no values to summarise")
    if not all(math.isfinite(value) for value in values):
        raise ValueError("values to summarise must be finite")
    mean = statistics.fmean(values)
    stddev = statistics.stdev(values) if len(values) > 1 else 0.0
    return Summary(
        n=len(values),
        median=statistics.median(values),
        mean=mean,
        p95=percentile(values, 95),
        minimum=min(values),
        maximum=max(values),
        stddev=stddev,
        spread=0.0 if stddev == 0 else stddev / abs(mean) if mean else math.inf,
    )


def median_interval(values: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float] | None:
    """A confidence interval of the median from order statistics; None when there are too few values for one.

    The k-th smallest and k-th largest of n values hold the median between them with probability
    1 - 2 * P(Binomial(n, 1/2) < k), whatever the distribution (David and Nagaraja, Order Statistics, 7.1).
    Six values are the fewest for 0.95. The terms are taken as logarithms: from 1024 values on, 2**n is no float.
    """
    ordered, n = sorted(values), len(values)
    below, rank = 0.0, 0
    while rank < n // 2:
        log_ways = math.lgamma(n + 1) - math.lgamma(rank + 1) - math.lgamma(n - rank + 1)
        below += math.exp(log_ways - n * math.log(2))
        if 1 - 2 * below < confidence:
            break
        rank += 1
    return (ordered[rank - 1], ordered[n - rank]) if rank else None


def is_settled(seconds: Sequence[float], *, window: int, tolerance: float) -> bool:
    """Whether warm-up is over: the last `window` steps are no faster than the `window` before them.

    Medians are compared, so that one slow step is no reason to go on; `tolerance` is relative (0.1: 10 %).
    False while there are fewer than two windows.
    """
    assert window >= 1, window
    if len(seconds) < 2 * window:
        return False
    last = statistics.median(seconds[-window:])
    before = statistics.median(seconds[-2 * window : -window])
    return last >= before * (1 - tolerance)


def percentile(values: Sequence[float], percent: float) -> float:
    """Percentile (0 to 100) by linear interpolation between the two nearest ranks, as `numpy.percentile` does."""
    assert values, "no values"
    assert 0 <= percent <= 100, percent
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
