"""A run against a reservation, computed by hand."""

from __future__ import annotations

import pytest

from pilotkit.decide.reservation import judge

HOUR = 3600.0


def test_a_run_that_fits() -> None:
    outcome = judge(100 * HOUR, days=7, name="7d", num_gpus=8, price_per_gpu_hour=2.5, spread=0.1)
    assert outcome.hours_available == 168
    assert outcome.run_hours == pytest.approx(100)
    assert outcome.slow_run_hours == pytest.approx(110)
    assert outcome.margin_hours == pytest.approx(58)
    assert outcome.gpu_hours == pytest.approx(800)
    assert outcome.cost == pytest.approx(168 * 8 * 2.5)
    assert outcome.fits


@pytest.mark.parametrize(
    ("hours", "spread", "fits", "margin"),
    [
        (168.0, None, True, 0.0),
        (168.0, 0.0, True, 0.0),
        (160.0, 0.05, True, 0.0),
        (160.0, 0.06, False, -1.6),
        (200.0, None, False, -32.0),
    ],
    ids=["exactly", "no spread", "slow edge exactly", "slow edge too long", "too long"],
)
def test_the_slow_edge_decides(hours: float, spread: float | None, fits: bool, margin: float) -> None:
    outcome = judge(hours * HOUR, days=7, name="7d", num_gpus=1, price_per_gpu_hour=None, spread=spread)
    assert outcome.fits is fits
    assert outcome.margin_hours == pytest.approx(margin)
    assert outcome.cost is None


def test_plain_data() -> None:
    outcome = judge(24 * HOUR, days=2, name="2d", num_gpus=4, price_per_gpu_hour=1.0, spread=None)
    assert outcome.to_dict() == {
        "name": "2d",
        "days": 2,
        "hours_available": 48.0,
        "run_hours": 24.0,
        "slow_run_hours": 24.0,
        "fits": True,
        "margin_hours": 24.0,
        "gpu_hours": 96.0,
        "cost": 192.0,
    }
