"""What would have to change for a reservation to hold the run: computed for each thing that can be changed alone.

Called by stage `plan` when no reservation reaches the target probability.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pilotkit.decide.finish import Work, simulate
from pilotkit.decide.interval import young_daly_seconds
from pilotkit.decide.workload import Assumptions
from pilotkit.units import DAY, format_chance, format_seconds

HALVINGS = 16
"""Of the search for a factor: finer than the simulation by far."""
MIN_FACTOR = 0.01


@dataclass(frozen=True)
class Remedy:
    """`what` is changed, and `enough` says whether that alone reaches the target with what `sentence` says."""

    what: str
    enough: bool
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the record."""
        return dataclasses.asdict(self)


def remedies(
    work: Work,
    *,
    name: str,
    days: float,
    assumptions: Assumptions,
    more_devices: Callable[[], tuple[int, float] | None],
    tokens: int,
) -> list[Remedy]:
    """For the reservation `name` of `days`. `more_devices` finds the least number that reaches the target, with its
    probability; `tokens` are those of the whole run.
    """

    def probability(changed: Work) -> float:
        finish = simulate(changed, num_draws=assumptions.num_draws, seed=assumptions.seed)
        return finish.probability(days * DAY)

    target = assumptions.target_probability
    found = [_devices(more_devices(), name=name), _interval(work, name=name, target=target, probability=probability)]
    factor = _largest_factor(work, target=target, probability=probability)
    if factor is None:
        found.append(Remedy("speed", False, f"no speed alone is enough: what comes before and after fills {name}"))
        return found
    speed = f"steps that take {100 * factor:.0f} % of their time ({1 / factor:.2f} times the speed) would fit {name}"
    found.append(Remedy("precision or hardware", True, speed))
    shorter = f"training on {factor * tokens:,.0f} tokens instead of {tokens:,} would fit {name}"
    found.append(Remedy("total_tokens", True, shorter))
    return found


def _devices(found: tuple[int, float] | None, *, name: str) -> Remedy:
    if found is None:
        return Remedy("devices", False, f"no number of devices that was looked at fits {name}")
    count, probability = found
    return Remedy(
        "devices",
        True,
        f"{count} devices would be done within {name} with a probability of {format_chance(probability)}",
    )


def _interval(work: Work, *, name: str, target: float, probability: Callable[[Work], float]) -> Remedy:
    if not work.failures_per_second or not work.save_seconds:
        return Remedy("checkpoint interval", False, "no other checkpoint interval gains anything")
    best = young_daly_seconds(work.save_seconds, mtbf_seconds=1 / work.failures_per_second)
    reached = probability(work.changed(interval_seconds=best))
    text = f"a save each {format_seconds(best)} (Young-Daly) gives {name} a probability of {format_chance(reached)}"
    return Remedy("checkpoint interval", reached >= target, text)


def _largest_factor(work: Work, *, target: float, probability: Callable[[Work], float]) -> float | None:
    """The largest share of the work that reaches the target; the number of saves stays, their distance shrinks."""

    def reached(factor: float) -> bool:
        interval = None if work.interval_seconds is None else work.interval_seconds * factor
        return probability(work.changed(work_seconds=work.work_seconds * factor, interval_seconds=interval)) >= target

    low, high = MIN_FACTOR, 1.0
    if not reached(low):
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) else (low, middle)
    return low
