"""From the record of `budget` to the run that the simulation draws: what comes once, what repeats, what can fail.

Called by `pilotkit.decide.option`. Takes the ledger as it is written; a part without which no time to finish can be
stated is named in `WorkMissing`, never replaced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilotkit.decide.failures import NINETY_PERCENT, FailureModel
from pilotkit.decide.finish import Work
from pilotkit.records.record import Record

BEFORE = ("download", "preprocessing", "tokenising", "process start", "model load", "first batch", "warm-up")
REPEATED = ("steps", "evaluation")
AFTER = ("export", "copy-out")
NEEDED = ("steps", "checkpoint saves", "one restart")


class WorkMissing(Exception):
    """No time to finish can be stated; the message names the parts of the ledger that are not known."""


@dataclass(frozen=True)
class Assumptions:
    """What no stage measures. Seconds; spreads are coefficients of variation. `failures` is the fleet."""

    failures: FailureModel
    target_probability: float = 0.9
    num_draws: int = 20_000
    seed: int = 0
    queue_seconds: float = 0.0
    setup_seconds: float = 0.0
    repair_seconds: float = 660.0
    repair_spread: float = 1.0
    drift_spread: float = 0.03
    rerun_probability: float = 0.0


def work_of(
    budget: Record,
    *,
    assumptions: Assumptions,
    num_nodes: float,
    step_factor: float = 1.0,
    step_band: tuple[float, float] | None = None,
    steps_per_save_factor: float = 1.0,
) -> Work:
    """The run of this ledger. `step_factor` scales the time of all steps (other devices), `step_band` is the lowest
    and the highest factor on it, `steps_per_save_factor` the work between two saves.

    Raises WorkMissing.
    """
    lines: dict[str, Mapping[str, Any]] = {str(line["part"]): line for line in budget.details.get("ledger") or ()}
    unknown = [part for part in NEEDED if part not in lines or lines[part]["seconds"] is None]
    if unknown:
        raise WorkMissing(", ".join(unknown))
    steps = float(lines["steps"]["seconds"]) * step_factor
    work_seconds = steps + _seconds(lines, ("evaluation",))
    num_saves = max(int(lines["checkpoint saves"]["count"]), 1)
    every = budget.metrics.get("checkpoint_every_steps")
    num_steps = int(lines["steps"]["count"])
    interval = work_seconds * every / num_steps if every else work_seconds / num_saves
    return Work(
        work_seconds=work_seconds,
        interval_seconds=interval * steps_per_save_factor,
        save_seconds=float(lines["checkpoint saves"]["each_seconds"]),
        restart_seconds=float(lines["one restart"]["each_seconds"]) + assumptions.repair_seconds,
        failures_per_second=assumptions.failures.per_second(num_nodes),
        before_seconds=_seconds(lines, BEFORE) + assumptions.queue_seconds + assumptions.setup_seconds,
        after_seconds=_seconds(lines, AFTER),
        speed_sigma=_speed_sigma(lines["steps"], drift=assumptions.drift_spread, band=step_band),
        failure_sigma=assumptions.failures.sigma,
        restart_spread=assumptions.repair_spread,
        rerun_probability=assumptions.rerun_probability,
    )


def _seconds(lines: Mapping[str, Mapping[str, Any]], parts: tuple[str, ...]) -> float:
    """Together; a part that is not known adds nothing (the ledger names it), nor one that lies within another."""
    known = [lines[part] for part in parts if part in lines and not lines[part].get("included_in")]
    return sum(float(line["seconds"] or 0.0) for line in known)


def _speed_sigma(steps: Mapping[str, Any], *, drift: float, band: tuple[float, float] | None) -> float:
    """Standard deviation of the logarithm of the run's mean speed.

    A mean of n steps is uncertain by spread / sqrt(n); what the pilot could not see is the drift; a projection adds
    its band, taken as 90 % of a normal distribution. Independent of each other, so their squares add up.
    """
    spread, samples = steps.get("spread") or 0.0, steps.get("samples") or 1
    variance = spread**2 / samples + drift**2
    if band is not None:
        low, high = band
        variance += (math.log(high / low) / (2 * NINETY_PERCENT)) ** 2
    return math.sqrt(variance)
