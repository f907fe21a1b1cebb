"""GO, NO-GO or INCOMPLETE: the verdict over all the evidence of one configuration.

Called by stage `plan`; read by the report. Rests on records alone and names each by its run id. Never turns missing
evidence into a yes: what nobody measured keeps the verdict INCOMPLETE.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pilotkit.decide.evidence import Finding, void_because, weigh
from pilotkit.decide.reservation import ReservationOutcome
from pilotkit.records.record import Record
from pilotkit.units import HOUR, format_chance, format_seconds

GO, NO_GO, INCOMPLETE = "GO", "NO-GO", "INCOMPLETE"
EVIDENCE = ("lock", "prove", "measure", "numerics", "pilot", "restore", "qualify", "budget")
STRONGEST_FIRST = ("reservation", "budget", "pilot", "measure", "numerics", "restore", "qualify", "prove", "lock")
"""What a reader who pays asks for first."""
NOT_BUILT = "not built in this version"
AGREEMENT = 1.25
"""Two measurements of one step may differ by this factor before it is told."""


@dataclass(frozen=True)
class Missing:
    """Evidence that a yes would need. `command` would supply it; None when this version cannot."""

    what: str
    command: str | None


@dataclass(frozen=True)
class Verdict:
    """`reasons` are full sentences with run ids; `evidence` maps each stage that counted to its run id.

    `cautions` change nothing of the verdict, and whoever pays has to read them first.
    """

    verdict: str
    reasons: list[str]
    missing: list[Missing]
    evidence: dict[str, str] = field(default_factory=dict)
    cautions: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the record."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Verdict:
        """Read `to_dict` back."""
        return cls(
            verdict=str(plain["verdict"]),
            reasons=[str(reason) for reason in plain["reasons"]],
            missing=[Missing(item["what"], item["command"]) for item in plain["missing"]],
            evidence=dict(plain.get("evidence") or {}),
            cautions=[str(text) for text in plain.get("cautions") or ()],
        )


def stage_command(stage: str, *, overrides: Sequence[str] = ()) -> str:
    """The command that runs one stage of the same configuration: what the user typed, with another `stage=`."""
    kept = [word for word in overrides if not word.startswith("stage=")]
    return shlex.join(["pilotkit", f"stage={stage}", *kept])


def decide_verdict(
    records: Mapping[str, Record],
    *,
    hardware: str,
    precision: str,
    activation_checkpointing: str,
    reservations: Sequence[ReservationOutcome],
    chosen_reservation: str | None = None,
    strategy: str | None = None,
    overrides: Sequence[str] = (),
    built: Collection[str] = (),
    drift: str = "",
) -> Verdict:
    """Weigh the newest record of each stage.

    `hardware`, `precision`, `activation_checkpointing` and `strategy` are the names chosen for the intended run;
    `chosen_reservation` is the one of `reservations` that is about to be made.
    `overrides` is what the user typed, repeated in the commands that would supply what is missing; `built` are the
    stages that this version can run.
    `drift` says what is no longer as it was locked: no evidence then speaks of what would run.
    NO-GO outweighs INCOMPLETE: a fault stays one whatever else is still to be measured.
    """
    missing: list[Missing] = []
    if drift:
        missing.append(Missing(f"lock: {drift}; lock and measure again", stage_command("all", overrides=overrides)))
    found: dict[str, Finding] = {}
    evidence: dict[str, str] = {}
    for stage in EVIDENCE:
        if stage == "pilot" and strategy == "single":
            continue  # one device has no communication to pilot
        if stage == "numerics" and (precision, activation_checkpointing) == ("fp32", "none"):
            continue  # nothing was chosen that could be wrong
        if stage == "qualify" and hardware == "cpu" and stage not in records:
            continue  # nobody reserves this machine: its stack is tried where somebody asks for it
        record = records.get(stage)
        absence = "not run" if record is None else void_because(record, lock=records.get("lock"))
        if record is None or absence is not None:
            missing.append(Missing(f"{stage}: {absence}", stage_command(stage, overrides=overrides)))
            continue
        finding = weigh(record, strategy=strategy, recomputation=activation_checkpointing)
        if finding.weight == "missing":
            missing.append(Missing(f"{stage}: {finding.text}", stage_command(stage, overrides=overrides)))
            continue
        found[stage] = finding
        evidence[stage] = record.run_id
    missing += _not_built(
        records,
        hardware=hardware,
        measured="measure" in found,
        built=built,
        overrides=overrides,
    )
    if "pilot" in found and "measure" in found:
        notes = (*found["pilot"].notes, *_disagreement(records["measure"], records["pilot"]))
        found["pilot"] = dataclasses.replace(found["pilot"], notes=notes)
    if "budget" in found:
        found["reservation"] = _reservations(reservations, chosen=chosen_reservation, run_id=evidence["budget"])
        if found["reservation"].weight == "missing":
            command = stage_command("plan", overrides=[*overrides, "plan.reservations=[7d]"])
            missing.append(Missing(found.pop("reservation").text, command))
    return _conclude(found, missing=missing, evidence=evidence)


def _disagreement(measure: Record, pilot: Record) -> tuple[str, ...]:
    """The same step on one device, measured twice: a reader has to know when the two do not agree."""
    one, other = measure.metrics.get("step_seconds"), pilot.metrics.get("single_step_seconds")
    if not one or not other or max(one, other) / min(one, other) <= AGREEMENT:
        return ()
    return (
        f"One device takes {format_seconds(one)} a step in measure and {format_seconds(other)} in pilot: the machine "
        f"was not equally free; measure again on a quiet one ({measure.run_id}, {pilot.run_id}).",
    )


def _not_built(
    records: Mapping[str, Record],
    *,
    hardware: str,
    measured: bool,
    built: Collection[str],
    overrides: Sequence[str],
) -> list[Missing]:
    """Evidence that this run needs from chapters that not every version can produce."""

    def lacks(stage: str) -> bool:
        record = records.get(stage)
        return record is None or record.status not in ("ok", "does_not_fit")

    def missing_of(stage: str, text: str) -> Missing:
        if stage in built:
            return Missing(f"{stage}: {text}", stage_command(stage, overrides=overrides))
        return Missing(f"{stage}: {text}, {NOT_BUILT}", None)

    missing = []
    if hardware != "cpu" and not measured and lacks("estimate"):
        if "estimate" in built:
            missing.append(missing_of("estimate", f"nothing was measured or estimated on {hardware}"))
        else:
            what = f"estimate: nothing was measured on {hardware}, and estimates are {NOT_BUILT}"
            missing.append(Missing(what, None))
    return missing


def _reservations(reservations: Sequence[ReservationOutcome], *, chosen: str | None, run_id: str) -> Finding:
    """Whether the chosen reservation holds the run (any, when none is chosen), and which one would."""
    if not reservations:
        return Finding("missing", "reservation: no time to finish is known to compare one with")
    where = f"(projected, budget {run_id})"
    fitting = [outcome for outcome in reservations if outcome.fits]
    refused = next((outcome for outcome in reservations if outcome.name == chosen and not outcome.fits), None)
    if refused is not None and fitting:
        longer = min(fitting, key=lambda outcome: outcome.hours_available)
        text = (
            f"Within {refused.name} the run is done with a probability of {_probability(refused)}; {_needs(refused)}, "
            f"and reservation={longer.name} would hold it with {format_chance(longer.probability)}. "
            f"{refused.name} is good for qualifying and profiling {where}."
        )
        return Finding("against", text)
    if fitting:
        best = next((outcome for outcome in fitting if outcome.name == chosen), None) or min(
            fitting, key=lambda outcome: outcome.hours_available
        )
        text = (
            f"Within {best.name} the run is done with a probability of {_probability(best)}: {_needs(best)}, which "
            f"leaves {_hours(best.margin_hours)} {where}."
        )
        return Finding("for", text)
    longest = max(reservations, key=lambda outcome: outcome.hours_available)
    text = (
        f"No reservation is long enough: within {longest.name}, the longest, the run is done with a probability of "
        f"{_probability(longest)}; {_needs(longest)} {where}."
    )
    return Finding("against", text)


def _probability(outcome: ReservationOutcome) -> str:
    return f"{format_chance(outcome.probability)} (target {format_chance(outcome.target_probability)})"


def _needs(outcome: ReservationOutcome) -> str:
    if outcome.target_hours is None or outcome.run_hours is None:
        return "it is interrupted so often that it never ends"
    return (
        f"it takes {_hours(outcome.run_hours)} in the median and {_hours(outcome.target_hours)} with "
        f"the buffer for that target"
    )


def _conclude(found: Mapping[str, Finding], *, missing: list[Missing], evidence: dict[str, str]) -> Verdict:
    ordered = [found[name] for name in STRONGEST_FIRST if name in found]
    against = [finding.text for finding in ordered if finding.weight == "against"]
    cautions = [text for finding in ordered for text in finding.cautions]
    if against:
        return Verdict(NO_GO, against, missing, evidence, cautions)
    # What was found, strongest first; then what stands beside it.
    supporting = [finding.text for finding in ordered] + [note for finding in ordered for note in finding.notes]
    if not missing:
        return Verdict(GO, supporting, missing, evidence, cautions)
    count = len(missing)
    pieces = "1 piece of evidence is" if count == 1 else f"{count} pieces of evidence are"
    first = f"{pieces} missing; nothing found so far speaks against the run."
    return Verdict(INCOMPLETE, [first, *supporting], missing, evidence, cautions)


def _hours(hours: float | None) -> str:
    assert hours is not None
    return format_seconds(hours * HOUR)
