"""Summaries by hand and against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pilotkit.meter import Summary, summarize
from pilotkit.meter.statistics import percentile


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
