"""Closed forms against values from their papers and from a calculator."""

from __future__ import annotations

import math

import pytest

from pilotkit.decide.interval import (
    expected_ettr,
    lost_share,
    seconds_with_checkpoints,
    seconds_without_checkpoints,
    young_daly_seconds,
)

HOUR, DAY = 3600.0, 86400.0


def test_young_daly_for_a_minute_and_a_day() -> None:
    assert young_daly_seconds(60, mtbf_seconds=DAY) == pytest.approx(3220, abs=1)


def test_the_proposed_interval_loses_least() -> None:
    best = young_daly_seconds(60, mtbf_seconds=DAY)
    share = {
        factor: lost_share(factor * best, save_seconds=60, mtbf_seconds=DAY, restart_seconds=0)
        for factor in (0.5, 0.99, 1.0, 1.01, 2.0)
    }
    assert min(share, key=lambda factor: share[factor]) == 1.0
    assert share[1.0] == pytest.approx(math.sqrt(2 * 60 / DAY))


def test_a_spot_run_without_checkpoints() -> None:
    seconds = seconds_without_checkpoints(48.5 * HOUR, failures_per_second=0.15 / HOUR)
    assert seconds / HOUR == pytest.approx(9618, abs=1)


def test_the_same_run_saved_each_half_hour() -> None:
    seconds = seconds_with_checkpoints(
        48.5 * HOUR, interval_seconds=0.5 * HOUR, save_seconds=0, restart_seconds=0, failures_per_second=0.15 / HOUR
    )
    assert seconds / HOUR == pytest.approx(50.4, abs=0.05)


def test_without_failures_only_saves_cost() -> None:
    seconds = seconds_with_checkpoints(
        100, interval_seconds=10, save_seconds=1, restart_seconds=5, failures_per_second=0
    )
    assert seconds == pytest.approx(110)
    assert seconds_without_checkpoints(100, failures_per_second=0) == 100


def test_what_never_ends_is_infinite() -> None:
    assert seconds_without_checkpoints(1e6, failures_per_second=1.0) == math.inf


def test_ettr_of_a_research_cluster() -> None:
    # 2,048 nodes at 6.5e-3 a day, hourly saves of a minute, 5 minutes to restart:
    # (1 - 13.312 x (300 + 1800) / 86400) / (1 + 60 / 3600) = 0.67644 / 1.016667
    ratio = expected_ettr(
        2048, failures_per_node_second=6.5e-3 / DAY, interval_seconds=3600, save_seconds=60, restart_seconds=300
    )
    assert ratio == pytest.approx(0.6653, abs=1e-4)
