"""One reservation against one run: how likely is the run done within it, with what buffer?

Called by `pilotkit.decide.option`. A reservation holds a run when the probability to be done reaches the target;
never rounds a run down into a reservation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilotkit.decide.finish import Finish
from pilotkit.units import DAY, HOUR


@dataclass(frozen=True)
class ReservationOutcome:
    """What one reservation would mean. Hours are wall-clock hours of the reservation; None where a run never ends.

    `run_hours` is the median, `target_hours` the time within which the run is done with the target probability;
    `margin_hours` is what is left after that, negative when the reservation does not hold the run.
    `buffer_hours` is `target_hours - run_hours`: what has to be reserved beyond the median.
    """

    name: str
    days: float
    hours_available: float
    probability: float
    target_probability: float
    run_hours: float | None
    target_hours: float | None
    margin_hours: float | None
    buffer_hours: float | None
    fits: bool
    cost: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the record."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> ReservationOutcome:
        """Read `to_dict` back."""
        return cls(**plain)


def judge(finish: Finish, *, name: str, days: float, target_probability: float) -> ReservationOutcome:
    """Compare the time to finish with a reservation of `days`."""
    assert days > 0, days
    available = days * DAY
    probability = finish.probability(available)
    median, target = finish.quantile(0.5), finish.quantile(target_probability)
    ends = math.isfinite(target)
    return ReservationOutcome(
        name=name,
        days=days,
        hours_available=available / HOUR,
        probability=probability,
        target_probability=target_probability,
        run_hours=median / HOUR if math.isfinite(median) else None,
        target_hours=target / HOUR if ends else None,
        margin_hours=(available - target) / HOUR if ends else None,
        buffer_hours=(target - median) / HOUR if ends else None,
        fits=probability >= target_probability,
    )
