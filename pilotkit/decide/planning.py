"""The plan: every option of a study judged, the chosen one drawn, scaled, varied, and mended where it does not fit.

Called by stage `plan` with candidates and a question; a pure function of both. Arranges what the files beside it
compute and writes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilotkit.decide.choice import Choice, choose
from pilotkit.decide.cost import Prices
from pilotkit.decide.finish import Finish
from pilotkit.decide.knee import Scaling, look
from pilotkit.decide.option import Evaluated, Option, evaluate
from pilotkit.decide.remedies import Remedy, remedies
from pilotkit.decide.reservation import ReservationOutcome
from pilotkit.decide.scaling import FIXED_DEVICE_BATCH, FIXED_GLOBAL_BATCH, Limits, fit
from pilotkit.decide.sensitivity import WhatIf, what_if
from pilotkit.decide.study import Candidate, is_sibling, scaling_points
from pilotkit.decide.workload import Assumptions

MAX_PLOTTED = 40


@dataclass(frozen=True)
class Question:
    """What is asked of a plan. `reservations` are days by name; `network_bytes_per_second` is given or None."""

    assumptions: Assumptions
    reservations: Mapping[str, float]
    prices: Prices = dataclasses.field(default_factory=Prices)
    device_counts: tuple[int, ...] = ()
    max_devices: int = 1024
    min_marginal_gain: float = 0.5
    max_global_batch_size: int | None = None
    network_bytes_per_second: float | None = None
    chosen_reservation: str | None = None
    baseline_memory_bytes: float | None = None
    """Of the A100, against which larger memory is called so."""
    overrides: tuple[str, ...] = ()
    """What the user typed, repeated in the commands that would supply what is missing."""


@dataclass(frozen=True)
class Plan:
    """`chosen` is the configuration that was asked about; `choice` compares it with the rest of the study."""

    question: Question
    chosen: Evaluated
    choice: Choice
    scaling: dict[str, Scaling]
    sensitivity: list[WhatIf]
    remedies: list[Remedy]
    num_nodes: int

    @property
    def outcomes(self) -> list[ReservationOutcome]:
        """Of the chosen configuration, shortest reservation first."""
        return self.chosen.option.outcomes

    def to_details(self) -> dict[str, Any]:
        """Plain data for the record."""
        return {
            "reservations": [outcome.to_dict() for outcome in self.outcomes],
            "currency": self.question.prices.currency,
            "prices": dataclasses.asdict(self.question.prices),
            "cost": self.chosen.option.cost_lines,
            "curve": _curve(self.chosen.finish, self.question.reservations),
            "options": [
                {"decision": item.decision, "reason": item.reason, **item.option.to_dict()}
                for item in self.choice.judged
            ],
            "recommended": _headline(self.choice.recommended),
            "ordered_by": self.choice.quantity,
            "scaling": {mode: _scaling(found) for mode, found in self.scaling.items()},
            "sensitivity": [row.to_dict() for row in self.sensitivity],
            "remedies": [remedy.to_dict() for remedy in self.remedies],
            "assumptions": _assumptions(self.question, num_nodes=self.num_nodes),
        }


def make_plan(candidates: Sequence[Candidate], *, question: Question) -> Plan:
    """Judge every candidate at its own number of devices and at those of the question; the first one is the chosen."""
    chosen = candidates[0]
    scalings = [_scalings(candidate, candidates, question) for candidate in candidates]
    evaluated = [
        _evaluate(candidate, count, scaling, question, lender=chosen)
        for candidate, scaling in zip(candidates, scalings, strict=True)
        for count in _counts(candidate, candidates, question)
    ]
    first = evaluated[0]
    choice = choose(
        [item.option for item in evaluated],
        currency=question.prices.currency,
        baseline_memory_bytes=question.baseline_memory_bytes,
    )
    return Plan(
        question=question,
        chosen=first,
        choice=choice,
        scaling=scalings[0],
        sensitivity=_sensitivity(first, question),
        remedies=_remedies(first, chosen, scalings[0], question),
        num_nodes=chosen.num_nodes,
    )


def _counts(candidate: Candidate, study: Sequence[Candidate], question: Question) -> list[int]:
    """The candidate's own number of devices, and those of the question for which no sibling stands nearer."""
    siblings = [other for other in study if other is candidate or is_sibling(candidate, other)]
    further = [
        count
        for count in question.device_counts
        if min(siblings, key=lambda other: _distance(other.num_devices, count)) is candidate
    ]
    return list(dict.fromkeys((candidate.num_devices, *further)))


def _distance(num_devices: int, count: int) -> tuple[float, int]:
    """How far a number of devices is from another one, as a ratio; the larger one of two is nearer."""
    return max(num_devices / count, count / num_devices), -num_devices


def limits_of(candidate: Candidate, *, question: Question) -> Limits:
    """What a step of this candidate meets beside its own arithmetic, from its records and the user's figures."""
    budget = candidate.records.get("budget")
    metrics: Mapping[str, float] = budget.metrics if budget is not None else {}
    lines = {str(line["part"]): line for line in (budget.details.get("ledger") or ()) if budget} if budget else {}

    def each(part: str) -> float | None:
        return lines[part].get("each_seconds") if part in lines else None

    save, restart = each("checkpoint saves"), each("one restart")
    link = candidate.config["hardware"].get("link_bandwidth_bytes_per_second")
    network = question.network_bytes_per_second
    every = candidate.config["train"].get("checkpoint_every_steps")
    return Limits(
        devices_per_node=candidate.devices_per_node,
        micro_batch_size=candidate.micro_batch_size,
        seq_len=candidate.seq_len,
        global_batch_size=candidate.global_batch_size,
        grad_accum_steps=candidate.grad_accum_steps,
        max_global_batch_size=question.max_global_batch_size,
        supply_per_node=metrics.get("supply_tokens_per_second"),
        supply_shared=metrics.get("shared_supply_tokens_per_second"),
        network_factor=max(link / network, 1.0) if link and network else 1.0,
        save_seconds=save or 0.0,
        restart_seconds=(restart or 0.0) + question.assumptions.repair_seconds,
        steps_between_saves=int(every) if every and save is not None and restart is not None else None,
        failures=question.assumptions.failures,
    )


def _scalings(candidate: Candidate, study: Sequence[Candidate], question: Question) -> dict[str, Scaling]:
    model = fit(scaling_points(candidate, study))
    if model is None:
        return {}
    limits = limits_of(candidate, question=question)
    found = {
        mode: look(
            model,
            limits=limits,
            mode=mode,
            max_devices=max(question.max_devices, candidate.num_devices, *question.device_counts, 1),
            min_marginal_gain=question.min_marginal_gain,
        )
        for mode in (FIXED_GLOBAL_BATCH, FIXED_DEVICE_BATCH)
    }
    return {mode: scaling for mode, scaling in found.items() if scaling is not None}


def _mode_of(candidate: Candidate) -> str:
    """A global batch that the user gave is kept at any number of devices; one that was derived grows with them."""
    return FIXED_GLOBAL_BATCH if candidate.config["train"].get("global_batch_size") else FIXED_DEVICE_BATCH


def _evaluate(
    candidate: Candidate,
    count: int,
    scaling: Mapping[str, Scaling],
    question: Question,
    lender: Candidate | None = None,
) -> Evaluated:
    return evaluate(
        candidate,
        lender=lender,
        num_devices=count,
        scaling=scaling.get(_mode_of(candidate)),
        assumptions=question.assumptions,
        reservations=question.reservations,
        prices=question.prices,
        overrides=question.overrides,
    )


def _sensitivity(first: Evaluated, question: Question) -> list[WhatIf]:
    if first.work is None:
        return []
    option = first.option
    outcome = option.holding or option.outcomes[-1]
    devices = next((line["devices"] for line in option.cost_lines if line["reservation"] == outcome.name), None)
    return what_if(
        first.work,
        assumptions=question.assumptions,
        reservations=question.reservations,
        cost=outcome.cost,
        device_cost=devices,
    )


def _remedies(
    first: Evaluated, candidate: Candidate, scaling: Mapping[str, Scaling], question: Question
) -> list[Remedy]:
    """Nothing to mend where a reservation holds the run; else for the longest one."""
    if first.work is None or first.option.holding is not None:
        return []
    longest = first.option.outcomes[-1]

    def more_devices() -> tuple[int, float] | None:
        found = scaling.get(_mode_of(candidate))
        counts = [point.num_devices for point in found.points] if found is not None else []
        for count in _doublings([count for count in counts if count > candidate.num_devices]):
            outcomes = _evaluate(candidate, count, scaling, question).option.outcomes
            if outcomes and outcomes[-1].fits:
                return count, outcomes[-1].probability
        return None

    return remedies(
        first.work,
        name=longest.name,
        days=longest.days,
        assumptions=question.assumptions,
        more_devices=more_devices,
        tokens=int(candidate.config["train"]["total_tokens"]),
    )


def _doublings(counts: Sequence[int]) -> list[int]:
    """The first, then each that is at least twice the one before."""
    kept: list[int] = []
    for count in counts:
        if not kept or count >= 2 * kept[-1]:
            kept.append(count)
    return kept


def _curve(finish: Finish | None, reservations: Mapping[str, float]) -> list[list[float]]:
    if finish is None:
        return []
    return [list(pair) for pair in finish.curve(days=max(reservations.values(), default=30.0) * 1.1)]


def _scaling(scaling: Scaling) -> dict[str, Any]:
    knee = scaling.knee
    kept = _thinned(scaling, keep={knee.num_devices})
    return {
        "calibrated": scaling.calibrated,
        "knee": dataclasses.asdict(knee),
        "points": [
            {**dataclasses.asdict(point), "step_seconds": point.step_seconds}
            for point in scaling.points
            if point in kept
        ],
    }


def _thinned(scaling: Scaling, *, keep: set[int]) -> list[Any]:
    """What a plot needs: every point where there are few, else the measured ones, the knee and some in between."""
    points = scaling.points
    if len(points) <= MAX_PLOTTED:
        return points
    wanted = {
        points[round((len(points) - 1) * (index / MAX_PLOTTED) ** 2)].num_devices for index in range(MAX_PLOTTED + 1)
    }
    return [point for point in points if point.num_devices in wanted | keep or point.origin != "projected"]


def _headline(option: Option | None) -> dict[str, Any] | None:
    """What a reader looks for first: which hardware, how many, how long, how much, how sure."""
    if option is None or option.holding is None:
        return None
    held = option.holding
    return {
        "label": option.label,
        "hardware": option.hardware,
        "num_devices": option.num_devices,
        "reservation": held.name,
        "days": held.days,
        "probability": held.probability,
        "run_hours": held.run_hours,
        "target_hours": held.target_hours,
        "cost": held.cost,
        "origin": option.origin,
        "overrides": option.overrides,
    }


def _assumptions(question: Question, *, num_nodes: int) -> dict[str, Any]:
    plain = dataclasses.asdict(question.assumptions)
    return {**plain, "failures_sentence": question.assumptions.failures.sentence(num_nodes)}
