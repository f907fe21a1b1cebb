"""The simulation against closed forms, and against a slow simulation that follows each failure through time."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from pilotkit.decide.failures import FailureModel
from pilotkit.decide.finish import Work, simulate
from pilotkit.decide.interval import expected_ettr, seconds_with_checkpoints, seconds_without_checkpoints

HOUR, DAY = 3600.0, 86400.0
RUN = Work(
    work_seconds=5 * DAY, interval_seconds=HOUR, save_seconds=60, restart_seconds=600, failures_per_second=2 / DAY
)


@pytest.mark.parametrize("failures_per_day", [0.0, 0.1, 2.0, 24.0])
@pytest.mark.parametrize("restart_spread", [0.0, 1.0])
def test_mean_is_dalys_complete_model(failures_per_day: float, restart_spread: float) -> None:
    work = RUN.changed(failures_per_second=failures_per_day / DAY, restart_spread=restart_spread)
    expected = seconds_with_checkpoints(
        work.work_seconds,
        interval_seconds=HOUR,
        save_seconds=60,
        restart_seconds=600,
        failures_per_second=failures_per_day / DAY,
    )
    assert simulate(work, num_draws=20_000).mean_seconds == pytest.approx(expected, rel=0.003)


def test_a_spot_run_without_checkpoints_takes_a_year() -> None:
    rate = 0.15 / HOUR
    work = Work(
        work_seconds=48.5 * HOUR,
        interval_seconds=None,
        save_seconds=60,
        restart_seconds=0,
        failures_per_second=rate,
    )
    expected = seconds_without_checkpoints(work.work_seconds, failures_per_second=rate)
    finish = simulate(work)
    assert expected / HOUR == pytest.approx(9618, abs=1)
    assert finish.mean_seconds == pytest.approx(expected, rel=0.03)
    assert finish.probability(30 * DAY) < 0.1
    saved = simulate(work.changed(interval_seconds=0.5 * HOUR, save_seconds=0.0))
    assert saved.mean_seconds / HOUR == pytest.approx(50.4, abs=0.2)


def test_goodput_is_the_published_ratio() -> None:
    fleet = FailureModel("rsc1", 6.5e-3)
    rate = fleet.per_second(128)
    finish = simulate(RUN.changed(failures_per_second=rate))
    ratio = expected_ettr(
        128, failures_per_node_second=6.5e-3 / DAY, interval_seconds=HOUR, save_seconds=60, restart_seconds=600
    )
    assert RUN.work_seconds / finish.mean_seconds == pytest.approx(ratio, abs=0.003)


def test_the_whole_distribution_is_that_of_a_run_followed_step_by_step() -> None:
    work = RUN.changed(work_seconds=12.5 * HOUR, failures_per_second=6 / DAY)
    rng = random.Random(1)
    slow = np.array([_follow(work, rng) for _ in range(4000)])
    fast = simulate(work, num_draws=40_000)
    for share in (0.05, 0.25, 0.5, 0.75, 0.9, 0.99):
        assert fast.quantile(share) == pytest.approx(float(np.quantile(slow, share)), rel=0.02), share


def _follow(work: Work, rng: random.Random) -> float:
    assert work.interval_seconds is not None
    clock, done, next_failure = 0.0, 0.0, rng.expovariate(work.failures_per_second)
    while done < work.work_seconds:
        piece = min(work.interval_seconds, work.work_seconds - done)
        if clock + piece + work.save_seconds <= next_failure:
            clock += piece + work.save_seconds
            done += piece
            continue
        clock, restarted = next_failure, False
        while not restarted:
            next_failure = clock + rng.expovariate(work.failures_per_second)
            restarted = clock + work.restart_seconds <= next_failure
            clock = clock + work.restart_seconds if restarted else next_failure
    return clock


@pytest.mark.parametrize("num_devices", [1, 8, 1024, 16384])
def test_every_size_has_its_draws(num_devices: int) -> None:
    fleet = FailureModel("typical", 5e-3, 2e-3, 2e-2, small_job_factor=3)
    work = RUN.changed(
        work_seconds=30 * DAY,
        failures_per_second=fleet.per_second(max(num_devices / 8, 1)),
        failure_sigma=fleet.sigma,
        speed_sigma=0.03,
        restart_spread=1.0,
        rerun_probability=0.1,
    )
    finish = simulate(work, num_draws=10_000)
    assert finish.seconds.size == 10_000
    assert (finish.seconds > work.work_seconds / 2).all()
    assert np.isfinite(finish.seconds).all()


def test_many_failures_are_drawn_like_few() -> None:
    """64 is where sums turn to their normal limit: nothing may jump there."""
    for failures in (50, 80):
        work = RUN.changed(failures_per_second=failures / (5 * DAY), interval_seconds=4 * HOUR)
        expected = seconds_with_checkpoints(
            work.work_seconds,
            interval_seconds=4 * HOUR,
            save_seconds=60,
            restart_seconds=600,
            failures_per_second=work.failures_per_second,
        )
        assert simulate(work).mean_seconds == pytest.approx(expected, rel=0.003)


def test_seed_decides_everything() -> None:
    one, same, other = simulate(RUN, seed=1), simulate(RUN, seed=1), simulate(RUN, seed=2)
    assert np.array_equal(one.seconds, same.seconds)
    assert not np.array_equal(one.seconds, other.seconds)


def test_without_chance_nothing_varies() -> None:
    work = RUN.changed(failures_per_second=0.0, before_seconds=100.0, after_seconds=50.0)
    finish = simulate(work, num_draws=100)
    assert finish.seconds == pytest.approx(5 * DAY + 120 * 60 + 150)
    assert finish.num_failures == 0


def test_a_last_piece_shorter_than_the_interval() -> None:
    finish = simulate(RUN.changed(work_seconds=2.5 * HOUR, failures_per_second=0.0), num_draws=10)
    assert finish.seconds == pytest.approx(2.5 * HOUR + 3 * 60)


def test_speed_spread_widens_around_the_median() -> None:
    finish = simulate(RUN.changed(failures_per_second=0.0, speed_sigma=0.1))
    assert finish.quantile(0.5) == pytest.approx(5 * DAY + 7200, rel=0.01)
    assert finish.quantile(0.95) == pytest.approx(5 * DAY * math.exp(0.1645) + 7200, rel=0.01)


def test_a_part_done_again() -> None:
    finish = simulate(RUN.changed(failures_per_second=0.0, save_seconds=0.0, rerun_probability=1.0))
    assert finish.mean_seconds == pytest.approx(7.5 * DAY, rel=0.01)


def test_what_never_ends_has_no_chance() -> None:
    finish = simulate(RUN.changed(interval_seconds=None, failures_per_second=100 / DAY), num_draws=100)
    assert finish.probability(1e12) == 0
    assert finish.quantile(0.9) == math.inf
    assert finish.num_failures == math.inf


def test_curve_rises_to_one() -> None:
    curve = simulate(RUN).curve(days=10, points=11)
    assert [day for day, _ in curve] == list(range(11))
    assert [share for _, share in curve] == sorted(share for _, share in curve)
    assert (curve[0][1], curve[-1][1]) == (0.0, 1.0)
