"""One option of the plan: a hardware, a number of devices, and what both mean for time, money and energy.

Called by stage `plan`. Everything follows from the records and the assumptions; `pilotkit.decide.choice` compares.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilotkit.decide.cost import Prices, cost_of, energy_kwh
from pilotkit.decide.evidence import FAULTS
from pilotkit.decide.finish import Finish, Work, simulate
from pilotkit.decide.knee import Scaling
from pilotkit.decide.memory import Fit, fit_of
from pilotkit.decide.reservation import ReservationOutcome, judge
from pilotkit.decide.scaling import ScalePoint
from pilotkit.decide.study import Candidate
from pilotkit.decide.timing import step_timing
from pilotkit.decide.verdict import stage_command
from pilotkit.decide.workload import Assumptions, WorkMissing, work_of
from pilotkit.units import HOUR


@dataclass(frozen=True)
class Option:
    """`origin` is that of its speed. `outcomes` is empty when no time to finish can be stated; `missing` says why.

    `gpu_hours` and `energy_kwh` belong to the median run, `num_failures` to the average one.
    """

    label: str
    hardware: str
    device_type: str
    num_devices: int
    micro_batch_size: int
    precision: str
    origin: str
    fit: Fit
    outcomes: list[ReservationOutcome]
    missing: list[str]
    qualified: bool
    overrides: list[str]
    disqualified: str = ""
    """Why the software stack was tried and found unfit, with the run id; empty when it was not."""
    memory_bytes: float | None = None
    commands: list[str] = dataclasses.field(default_factory=list)
    """What would supply the evidence that is missing, one command a stage."""
    tokens_per_second: float | None = None
    gpu_hours: float | None = None
    energy_kwh: float | None = None
    num_failures: float | None = None
    cost_lines: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    projection: str = ""
    """Of hardware that was not measured: where its speed and the rest of its ledger come from."""

    @property
    def holding(self) -> ReservationOutcome | None:
        """The cheapest reservation that holds the run, the shortest where there are no prices."""
        found = [outcome for outcome in self.outcomes if outcome.fits]
        return min(found, key=lambda item: (item.cost if item.cost is not None else 0.0, item.days), default=None)

    def lacking(self, what: str) -> Option:
        """The same option with one thing more that is missing."""
        return dataclasses.replace(self, missing=[*self.missing, what])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the record."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Evaluated:
    """An option with the run that was drawn for it; both None where no time to finish can be stated."""

    option: Option
    work: Work | None = None
    finish: Finish | None = None


def evaluate(
    candidate: Candidate,
    *,
    num_devices: int,
    scaling: Scaling | None,
    assumptions: Assumptions,
    reservations: Mapping[str, float],
    prices: Prices,
    overrides: Sequence[str] = (),
    lender: Candidate | None = None,
) -> Evaluated:
    """Judge one number of devices of one candidate.

    `reservations` are days by name; `overrides` is what the user typed, repeated in the commands. A candidate that was
    only estimated, with a corrected speed, takes all but its steps from the ledger of `lender`.
    """
    point = scaling.at(num_devices) if scaling is not None else None
    own = num_devices == candidate.num_devices
    bare = _bare(candidate, num_devices=num_devices, point=point)
    budget = candidate.records.get("budget")
    missing = _missing(candidate, budget_there=budget is not None)
    words = candidate.command_words(overrides)
    commands = [stage_command(text.partition(":")[0], overrides=words) for text in missing]
    bare = dataclasses.replace(bare, missing=missing, commands=commands)
    timing = step_timing(candidate.records, strategy=candidate.strategy)
    if timing is not None and timing.band is not None and point is not None:
        bare = dataclasses.replace(bare, projection=f"its speed is projected ({timing.name})")
        if budget is None and lender is not None and "budget" in lender.records:
            budget = lender.records["budget"]
            bare = dataclasses.replace(
                bare, projection=f"{bare.projection}, the rest of its ledger is that of {lender.label}"
            )
    if budget is None or (point is None and not own):
        return Evaluated(bare if missing else bare.lacking("scaling: this number of devices is not valid"))
    try:
        work = work_of(
            budget,
            assumptions=assumptions,
            num_nodes=num_devices / candidate.devices_per_node,
            **_step_changes(budget.metrics.get("tokens_per_step"), budget.details.get("ledger") or (), point),
        )
    except WorkMissing as error:
        return Evaluated(bare.lacking(f"budget: not known: {error}"))
    finish = simulate(work, num_draws=assumptions.num_draws, seed=assumptions.seed)
    return Evaluated(
        _with_outcomes(
            bare,
            candidate,
            finish=finish,
            target=assumptions.target_probability,
            reservations=reservations,
            prices=prices,
        ),
        work,
        finish,
    )


def _bare(candidate: Candidate, *, num_devices: int, point: ScalePoint | None) -> Option:
    steps = _steps_line(candidate)
    own = num_devices == candidate.num_devices
    origin = str(steps["origin"]) if own and steps else point.origin if point is not None else "not run"
    label = candidate.label if own else f"{num_devices} x {candidate.label.split(' x ', 1)[1]}"
    return Option(
        label=label,
        hardware=candidate.hardware,
        device_type=candidate.device_type,
        num_devices=num_devices,
        micro_batch_size=candidate.micro_batch_size,
        precision=candidate.precision,
        origin=origin,
        fit=fit_of(candidate),
        outcomes=[],
        missing=[],
        qualified=_status(candidate, "qualify") == "ok",
        overrides=candidate.overrides(),
        disqualified=_disqualified(candidate),
        memory_bytes=candidate.memory_bytes,
        tokens_per_second=point.tokens_per_second / point.goodput if point is not None and point.goodput else None,
    )


def _with_outcomes(
    bare: Option,
    candidate: Candidate,
    *,
    finish: Finish,
    target: float,
    reservations: Mapping[str, float],
    prices: Prices,
) -> Option:
    median = finish.quantile(0.5)
    hours = median / HOUR if math.isfinite(median) else None
    power = candidate.config["hardware"].get("power_watts")
    effectiveness = prices.power_usage_effectiveness
    energy = None
    if hours is not None:
        energy = energy_kwh(power_watts=power, num_devices=bare.num_devices, hours=hours, effectiveness=effectiveness)
    outcomes, lines = [], []
    for name, days in sorted(reservations.items(), key=lambda item: item[1]):
        cost = cost_of(
            prices,
            hardware=bare.hardware,
            num_devices=bare.num_devices,
            reservation=name,
            days=days,
            checkpoint_bytes=_checkpoint_bytes(candidate),
            energy_kwh=energy,
        )
        outcome = judge(finish, name=name, days=days, target_probability=target)
        outcomes.append(dataclasses.replace(outcome, cost=cost.total if cost else None))
        if cost is not None:
            lines.append({"reservation": name, **dataclasses.asdict(cost), "total": cost.total})
    return dataclasses.replace(
        bare,
        outcomes=outcomes,
        gpu_hours=None if hours is None else hours * bare.num_devices,
        energy_kwh=energy,
        num_failures=finish.num_failures if math.isfinite(finish.num_failures) else None,
        cost_lines=lines,
    )


def _step_changes(
    tokens_per_step: float | None, ledger: Sequence[Mapping[str, Any]], point: ScalePoint | None
) -> dict[str, Any]:
    """How the ledger's steps change with the number of devices: their time, their band, the work between two saves."""
    steps = next((line for line in ledger if line["part"] == "steps"), None)
    if point is None or steps is None or not steps.get("each_seconds") or not tokens_per_step:
        return {}
    here = point.step_seconds / point.tokens_per_step
    there = steps["each_seconds"] / tokens_per_step
    # The cadence is in steps: where a step holds more tokens there are fewer saves.
    return {
        "step_factor": here / there,
        "step_band": (point.low, point.high) if point.high > point.low > 0 else None,
        "steps_per_save_factor": point.tokens_per_step / tokens_per_step,
    }


def _missing(candidate: Candidate, *, budget_there: bool) -> list[str]:
    """Stages whose evidence an option of a plan needs and does not have."""
    needed = ["measure", *(["pilot"] if candidate.strategy != "single" else []), "restore"]
    found = [
        f"{stage}: {_status(candidate, stage)}"
        for stage in needed
        if _status(candidate, stage) not in ("ok", "does not fit")
    ]
    # The processor stands in for an accelerator while a run is prepared: nobody reserves it.
    if candidate.device_type != "cpu" and _status(candidate, "qualify") != "ok" and not _disqualified(candidate):
        found.append(f"qualify: {_status(candidate, 'qualify')}")
    return found if budget_there else [*found, f"budget: {_status(candidate, 'budget')}"]


def _status(candidate: Candidate, stage: str) -> str:
    """How the newest record of a stage ended, why it is void, or `not run`."""
    record = candidate.records.get(stage)
    return record.status.replace("_", " ") if record is not None else candidate.void.get(stage, "not run")


def _disqualified(candidate: Candidate) -> str:
    record = candidate.records.get("qualify")
    if record is None or record.status not in FAULTS:
        return ""
    summary = record.problem.summary.strip().rstrip(".") if record.problem else "not qualified"
    return f"{summary} (qualify {record.run_id})"


def _steps_line(candidate: Candidate) -> Mapping[str, Any] | None:
    budget = candidate.records.get("budget")
    ledger: Sequence[Mapping[str, Any]] = (budget.details.get("ledger") or ()) if budget is not None else ()
    return next((line for line in ledger if line["part"] == "steps"), None)


def _checkpoint_bytes(candidate: Candidate) -> float | None:
    for stage in ("restore", "prove"):
        record = candidate.records.get(stage)
        if record is not None and "checkpoint_bytes" in record.metrics:
            return record.metrics["checkpoint_bytes"]
    return None
