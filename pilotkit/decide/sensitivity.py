"""What if: the chosen option again, with one assumption changed at a time.

Called by stage `plan`. Every row is drawn with the same seed, so that what differs is the assumption.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilotkit.decide.finish import Work, simulate
from pilotkit.decide.reservation import judge
from pilotkit.decide.workload import Assumptions


@dataclass(frozen=True)
class WhatIf:
    """`probabilities` by reservation; `target_hours` within which the run is done with the target probability;
    `cost` of the reservation that the plan recommends, None without prices.
    """

    what: str
    probabilities: dict[str, float]
    target_hours: float | None
    cost: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the record."""
        return dataclasses.asdict(self)


def what_if(
    work: Work,
    *,
    assumptions: Assumptions,
    reservations: Mapping[str, float],
    cost: float | None,
    device_cost: float | None,
) -> list[WhatIf]:
    """The table. `cost` is that of the recommended reservation, `device_cost` the part of it that is devices."""
    without_drift = max(work.speed_sigma**2 - assumptions.drift_spread**2, 0.0)
    doubled_drift = (without_drift + (2 * assumptions.drift_spread) ** 2) ** 0.5
    changes: list[tuple[str, Work]] = [
        ("as planned", work),
        ("failures twice as often", work.changed(failures_per_second=2 * work.failures_per_second)),
        ("failures half as often", work.changed(failures_per_second=work.failures_per_second / 2)),
        ("steps 5 % slower", work.changed(work_seconds=1.05 * work.work_seconds, interval_seconds=_times(work, 1.05))),
        ("steps 20 % slower", work.changed(work_seconds=1.2 * work.work_seconds, interval_seconds=_times(work, 1.2))),
        ("restarts twice as long", work.changed(restart_seconds=2 * work.restart_seconds)),
        ("saves twice as long", work.changed(save_seconds=2 * work.save_seconds)),
        ("saved half as often", work.changed(interval_seconds=_times(work, 2.0))),
        ("twice the drift between pilot and run", work.changed(speed_sigma=doubled_drift)),
    ]
    rows = [_row(what, changed, assumptions, reservations, cost) for what, changed in changes]
    if cost is not None and device_cost is not None:
        base = rows[0]
        rows.append(dataclasses.replace(base, what="devices 20 % cheaper", cost=cost - 0.2 * device_cost))
    return rows


def _times(work: Work, factor: float) -> float | None:
    return None if work.interval_seconds is None else factor * work.interval_seconds


def _row(
    what: str, work: Work, assumptions: Assumptions, reservations: Mapping[str, float], cost: float | None
) -> WhatIf:
    finish = simulate(work, num_draws=assumptions.num_draws, seed=assumptions.seed)
    outcomes = [
        judge(finish, name=name, days=days, target_probability=assumptions.target_probability)
        for name, days in sorted(reservations.items(), key=lambda item: item[1])
    ]
    return WhatIf(what, {item.name: item.probability for item in outcomes}, outcomes[0].target_hours, cost)
