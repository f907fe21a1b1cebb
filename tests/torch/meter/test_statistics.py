"""Summaries by hand and against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pilotkit.meter import Summary, summarize
from pilotkit.meter.statistics import is_settled, median_interval, percentile


def test_by_hand() -> None:
    # Mean 5; squared deviations 9 + 1 + 1 + 9 = 20, over n - 1 = 3; p95 lies 0.85 of the way from 6 to 8.
    found = summarize([2.0, 8.0, 4.0, 6.0])
    assert (found.n, found.median, found.mean, found.minimum, found.maximum) == (4, 5.0, 5.0, 2.0, 8.0)
    assert found.stddev == pytest.approx(math.sqrt(20 / 3))
    assert found.spread == pytest.approx(math.sqrt(20 / 3) / 5)
    assert found.p95 == pytest.approx(7.7)


def test_one_value_has_no_spread() -> None:
    assert summarize([3.0]) == Summary(
        n=1, median=3.0, mean=3.0, p95=3.0, minimum=3.0, maximum=3.0, stddev=0.0, spread=0.0
    )


@pytest.mark.parametrize("percent", [0, 25, 50, 95, 99, 100])
def test_percentile_is_numpys(percent: float) -> None:
    values = [0.31, 0.30, 0.95, 0.32, 0.29, 0.33, 0.30]
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param([], "no values to summarise", id="none"),
        pytest.param([1.0, math.nan], "values to summarise must be finite", id="NaN"),
        pytest.param([1.0, math.inf], "values to summarise must be finite", id="infinity"),
    ],
)
def test_refused(values: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        summarize(values)


@pytest.mark.parametrize(("values", "spread"), [([0.0, 0.0], 0.0), ([-1.0, 1.0], math.inf)], ids=["zeros", "mean 0"])
def test_spread_without_a_mean(values: list[float], spread: float) -> None:
    assert summarize(values).spread == spread


def test_interval_of_the_median_by_hand() -> None:
    # With six values only (smallest, largest) reaches 95 %: 1 - 2 / 2^6 = 96.9 %; with ten, ranks 2 and 9: 97.9 %.
    assert median_interval([6.0, 1.0, 2.0, 5.0, 4.0, 3.0]) == (1.0, 6.0)
    assert median_interval([float(value) for value in range(1, 11)]) == (2.0, 9.0)
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None


@pytest.mark.parametrize(("n", "ranks"), [(1000, (469.0, 532.0)), (1024, (481.0, 544.0)), (10_000, (4902.0, 5099.0))])
def test_interval_of_long_runs(n: int, ranks: tuple[float, float]) -> None:
    # Ranks from whole-number sums of binomial coefficients; 2.0**1024 overflows, and a day's run has more steps.
    assert median_interval([float(value) for value in range(1, n + 1)]) == ranks


def test_interval_holds_the_median_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    held = 0
    for _ in range(2000):
        low, high = median_interval(generator.exponential(size=15).tolist()) or (0.0, 0.0)
        held += low <= math.log(2) <= high
    assert 0.95 <= held / 2000 <= 0.98


@pytest.mark.parametrize(
    ("seconds", "settled"),
    [
        ([10.0, 10.0, 10.0, 1.0, 1.0, 1.0], False),
        ([10.0, 10.0, 10.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], True),
        ([1.0, 1.0, 1.0, 1.0, 9.0, 1.0], True),
        ([1.0, 1.0, 1.0, 1.0, 1.0], False),
    ],
    ids=["falling", "flat", "one slow", "too few"],
)
def test_warm_up_is_over_when_steps_no_longer_become_faster(seconds: list[float], settled: bool) -> None:
    assert is_settled(seconds, window=3, tolerance=0.1) is settled
