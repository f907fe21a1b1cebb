"""A run against a reservation: probability, buffer and what is left, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pilotkit.decide.finish import Finish
from pilotkit.decide.reservation import ReservationOutcome, judge

HOUR = 3600.0
# 1, 2, ... 100 hours, each as likely.
HUNDRED = Finish(np.arange(1.0, 101.0) * HOUR, num_failures=2.0)


def test_a_run_that_fits() -> None:
    outcome = judge(HUNDRED, name="4d", days=4, target_probability=0.9)
    assert outcome == ReservationOutcome(
        name="4d",
        days=4,
        hours_available=96.0,
        probability=0.96,
        target_probability=0.9,
        run_hours=50.0,
        target_hours=90.0,
        margin_hours=6.0,
        buffer_hours=40.0,
        fits=True,
    )


@pytest.mark.parametrize(
    ("target", "fits", "margin"), [(0.5, True, 22.0), (0.72, True, 0.0), (0.73, False, -1.0), (1.0, False, -28.0)]
)
def test_the_target_decides(target: float, fits: bool, margin: float) -> None:
    outcome = judge(HUNDRED, name="3d", days=3, target_probability=target)
    assert outcome.probability == 0.72
    assert outcome.fits is fits
    assert outcome.margin_hours == pytest.approx(margin)


def test_a_run_that_never_ends_has_no_length() -> None:
    endless = Finish(np.full(10, np.inf), num_failures=np.inf)
    outcome = judge(endless, name="30d", days=30, target_probability=0.9)
    assert (outcome.probability, outcome.run_hours, outcome.margin_hours, outcome.fits) == (0.0, None, None, False)


def test_plain_data_and_back() -> None:
    outcome = judge(HUNDRED, name="2d", days=2, target_probability=0.4)
    assert ReservationOutcome.from_dict(outcome.to_dict()) == outcome
