"""Stage `plan`: is the run ready, and which reservation is long enough? Reads records, starts nothing."""

from __future__ import annotations

import dataclasses

from omegaconf import OmegaConf

from pilotkit.config.store import conf_dir
from pilotkit.decide.evidence import spread_of
from pilotkit.decide.reservation import ReservationOutcome, judge
from pilotkit.decide.verdict import decide_verdict
from pilotkit.records.record import Metrics
from pilotkit.report.tables import verdict_table
from pilotkit.stages.run import Run, StageResult
from pilotkit.units import HOUR


def run(run: Run) -> StageResult:
    """Compare the run's length with each reservation, weigh the evidence, and say GO, NO-GO or INCOMPLETE."""
    config, arithmetic = run.config, run.arithmetic
    outcomes = _reservations(run)
    verdict = decide_verdict(
        run.evidence,
        hardware=config.hardware.name,
        precision=config.precision.name,
        activation_checkpointing=config.activation_checkpointing.mode,
        reservations=outcomes,
        chosen_reservation=config.reservation.name,
        strategy=config.parallelism.strategy,
        overrides=run.overrides,
        drift=run.drift,
    )
    run.console.table(verdict_table(verdict))
    metrics = Metrics()
    metrics.add("given", num_gpus=arithmetic.world_size)
    budget = run.evidence.get("budget")
    total_seconds = budget.metrics.get("total_seconds") if budget else None
    if total_seconds is not None:
        run_hours = total_seconds / HOUR
        metrics.add("projected", run_hours=run_hours, gpu_hours=run_hours * arithmetic.world_size)
    details = {
        "verdict": verdict.to_dict(),
        "reservations": [dataclasses.asdict(outcome) for outcome in outcomes],
        "currency": config.plan.currency,
    }
    return StageResult(metrics=metrics, details=details)


def _reservations(run: Run) -> list[ReservationOutcome]:
    """The chosen reservation and those it is compared with. Empty when the run's length is not known."""
    config = run.config
    budget = run.evidence.get("budget")
    total_seconds = budget.metrics.get("total_seconds") if budget else None
    if total_seconds is None:
        return []
    days = {
        name: float(OmegaConf.load(conf_dir() / "reservation" / f"{name}.yaml").days)
        for name in config.plan.reservations
    }
    days[config.reservation.name] = config.reservation.days
    return [
        judge(
            total_seconds,
            days=length,
            name=name,
            num_gpus=run.arithmetic.world_size,
            price_per_gpu_hour=config.plan.price_per_gpu_hour,
            spread=spread_of(run.evidence, strategy=config.parallelism.strategy),
        )
        for name, length in sorted(days.items(), key=lambda item: item[1])
    ]
