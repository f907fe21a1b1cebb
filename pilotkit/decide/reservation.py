"""One reservation against one run: is it long enough, with how much to spare, and what does it cost?

Called by stage `plan`. Judges by the slow edge of the measured step time; never rounds a run down into a reservation.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from pilotkit.units import DAY, HOUR


@dataclass(frozen=True)
class ReservationOutcome:
    """What one reservation would mean. Hours are wall-clock hours of the whole reservation.

    `slow_run_hours` is `run_hours * (1 + spread)`; `margin_hours` is what is left after it, negative when it does
    not fit. `cost` is the price of the whole reservation, used or not; None without a price.
    """

    name: str
    days: float
    hours_available: float
    run_hours: float
    slow_run_hours: float
    fits: bool
    margin_hours: float
    gpu_hours: float
    cost: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the record."""
        return dataclasses.asdict(self)


def judge(
    total_seconds: float,
    *,
    days: float,
    name: str,
    num_gpus: int,
    price_per_gpu_hour: float | None,
    spread: float | None,
) -> ReservationOutcome:
    """Compare a run of `total_seconds` on `num_gpus` devices with a reservation of `days`.

    `spread` is the coefficient of variation of the step time (0.03: 3 %), None when it is not known. The whole run
    is taken as slower by that share: the steps of one day are not independent of each other, so the spread does
    not average out with their number.
    """
    assert total_seconds >= 0, total_seconds
    assert days > 0, days
    assert num_gpus > 0, num_gpus
    slow_seconds = total_seconds * (1 + (spread or 0.0))
    available_seconds = days * DAY
    hours_available = available_seconds / HOUR
    return ReservationOutcome(
        name=name,
        days=days,
        hours_available=hours_available,
        run_hours=total_seconds / HOUR,
        slow_run_hours=slow_seconds / HOUR,
        fits=slow_seconds <= available_seconds,
        margin_hours=(available_seconds - slow_seconds) / HOUR,
        gpu_hours=total_seconds / HOUR * num_gpus,
        cost=None if price_per_gpu_hour is None else hours_available * num_gpus * price_per_gpu_hour,
    )
