"""Stage `plan`: which hardware, how many, which reservation? Reads records, starts nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

from omegaconf import OmegaConf

from pilotkit.chapters import CHAPTERS
from pilotkit.config.identity import config_digest
from pilotkit.config.store import conf_dir
from pilotkit.decide.choice import BASELINE
from pilotkit.decide.cost import Prices
from pilotkit.decide.failures import FailureModel
from pilotkit.decide.planning import Plan, Question, make_plan
from pilotkit.decide.study import candidates_of
from pilotkit.decide.verdict import decide_verdict
from pilotkit.decide.workload import Assumptions
from pilotkit.records.record import Metrics, Record
from pilotkit.records.search import find_records
from pilotkit.report.tables import options_table, verdict_table
from pilotkit.stages.run import Run, StageResult
from pilotkit.units import HOUR


def run(run: Run) -> StageResult:
    """Draw the time to finish, compare reservations and options, and say GO, NO-GO or INCOMPLETE."""
    config = run.config
    plan = make_plan(candidates(run), question=question(run))
    verdict = decide_verdict(
        run.evidence,
        hardware=config.hardware.name,
        precision=config.precision.name,
        activation_checkpointing=config.activation_checkpointing.mode,
        reservations=plan.outcomes,
        chosen_reservation=config.reservation.name,
        strategy=config.parallelism.strategy,
        overrides=run.overrides,
        built=[chapter.stage for chapter in CHAPTERS if chapter.built],
        drift=run.drift,
    )
    run.console.table(verdict_table(verdict))
    run.console.table(options_table(plan.choice))
    details = {"verdict": verdict.to_dict(), **plan.to_details()}
    return StageResult(metrics=_metrics(plan, num_gpus=run.arithmetic.world_size), details=details)


def candidates(run: Run) -> list[Any]:
    """The chosen configuration and what else this study has records of; evidence handed over goes before the disk."""
    found = find_records(run.output_dir, name=run.config.name)
    digest = config_digest(run.config)
    # What `stage=all` has just made is not to be mixed with older records of the same configuration.
    records: list[Record] = [record for record in found.records if record.config_digest != digest]
    records += list(run.evidence.values())
    return candidates_of(records, like=dataclasses.asdict(run.config), digest=digest)


def question(run: Run) -> Question:
    """What the configuration asks of a plan, as plain figures."""
    config, plan = run.config, run.config.plan
    prices = dataclasses.asdict(config.prices)
    for name in ("per_gpu_hour", "per_reservation", "minimum_gpus"):
        prices[name] = {key: value for key, value in prices[name].items() if value is not None}
    if plan.price_per_gpu_hour is not None:
        hourly = {**prices["per_gpu_hour"], config.hardware.name: plan.price_per_gpu_hour}
        prices["per_gpu_hour"] = hourly
    return Question(
        assumptions=Assumptions(
            failures=FailureModel(**dataclasses.asdict(config.failures)),
            target_probability=plan.target_probability,
            num_draws=plan.num_draws,
            seed=plan.seed,
            queue_seconds=plan.queue_hours * HOUR,
            setup_seconds=plan.setup_hours * HOUR,
            repair_seconds=plan.repair_seconds,
            repair_spread=plan.repair_spread,
            drift_spread=plan.drift_spread,
            rerun_probability=plan.rerun_probability,
        ),
        reservations=_reservations(run),
        prices=Prices(**prices, currency=plan.currency),
        device_counts=tuple(plan.device_counts),
        max_devices=plan.max_devices,
        min_marginal_gain=plan.min_marginal_gain,
        max_global_batch_size=plan.max_global_batch_size,
        network_bytes_per_second=plan.network_bytes_per_second,
        chosen_reservation=config.reservation.name,
        baseline_memory_bytes=float(OmegaConf.load(conf_dir() / "hardware" / f"{BASELINE}.yaml").memory_bytes),
        overrides=tuple(run.overrides),
    )


def _reservations(run: Run) -> dict[str, float]:
    """Days by name: the chosen reservation and those it is compared with."""
    names = run.config.plan.reservations
    days = {name: float(OmegaConf.load(conf_dir() / "reservation" / f"{name}.yaml").days) for name in names}
    return {**days, run.config.reservation.name: run.config.reservation.days}


def _metrics(plan: Plan, *, num_gpus: int) -> Metrics:
    metrics = Metrics()
    metrics.add("given", num_gpus=num_gpus, target_probability=plan.question.assumptions.target_probability)
    metrics.add(
        "projected",
        run_hours=plan.outcomes[0].run_hours if plan.outcomes else None,
        target_hours=plan.outcomes[0].target_hours if plan.outcomes else None,
        gpu_hours=plan.chosen.option.gpu_hours,
        energy_kwh=plan.chosen.option.energy_kwh,
        num_failures=plan.chosen.option.num_failures,
        **{f"probability_{outcome.name}": outcome.probability for outcome in plan.outcomes},
    )
    return metrics
