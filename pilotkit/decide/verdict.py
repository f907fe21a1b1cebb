"""GO, NO-GO or INCOMPLETE: the verdict over all the evidence of one configuration.

Called by stage `plan`; read by the report. Rests on records alone and names each by its run id. Never turns missing
evidence into a yes: what nobody measured keeps the verdict INCOMPLETE.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pilotkit.decide.evidence import Finding, weigh
from pilotkit.decide.reservation import ReservationOutcome
from pilotkit.records.record import Record
from pilotkit.units import HOUR, format_seconds

GO, NO_GO, INCOMPLETE = "GO", "NO-GO", "INCOMPLETE"
EVIDENCE = ("lock", "prove", "measure", "pilot", "restore", "budget")
NOT_BUILT = "not built in this version"


@dataclass(frozen=True)
class Missing:
    """Evidence that a yes would need. `command` would supply it; None when this version cannot."""

    what: str
    command: str | None


@dataclass(frozen=True)
class Verdict:
    """`reasons` are full sentences with run ids; `evidence` maps each stage that counted to its run id."""

    verdict: str
    reasons: list[str]
    missing: list[Missing]
    evidence: dict[str, str] = field(default_factory=dict)

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
) -> Verdict:
    """Weigh the newest record of each stage.

    `hardware`, `precision`, `activation_checkpointing` and `strategy` are the names chosen for the intended run;
    `chosen_reservation` is the one of `reservations` that is about to be made.
    `overrides` is what the user typed, repeated in the commands that would supply what is missing.
    NO-GO outweighs INCOMPLETE: a fault stays one whatever else is still to be measured.
    """
    missing: list[Missing] = []
    found: dict[str, Finding] = {}
    evidence: dict[str, str] = {}
    for stage in EVIDENCE:
        if stage == "pilot" and strategy == "single":
            continue  # one device has no communication to pilot
        record = records.get(stage)
        absence = _absence(record, lock=records.get("lock"))
        if record is None or absence is not None:
            missing.append(Missing(f"{stage}: {absence}", stage_command(stage, overrides=overrides)))
            continue
        finding = weigh(record, strategy=strategy)
        if finding.weight == "missing":
            missing.append(Missing(f"{stage}: {finding.text}", stage_command(stage, overrides=overrides)))
            continue
        found[stage] = finding
        evidence[stage] = record.run_id
    missing += _not_built(
        hardware=hardware,
        precision=precision,
        activation_checkpointing=activation_checkpointing,
        measured="measure" in found,
        estimated=_estimate_of(records),
        overrides=overrides,
    )
    if "budget" in found:
        found["reservation"] = _reservations(reservations, chosen=chosen_reservation, run_id=evidence["budget"])
        if found["reservation"].weight == "missing":
            command = stage_command("plan", overrides=[*overrides, "plan.reservations=[7d]"])
            missing.append(Missing(found.pop("reservation").text, command))
    return _conclude(found, missing=missing, evidence=evidence)


def _absence(record: Record | None, *, lock: Record | None) -> str | None:
    """Why a record cannot count, or None. Without a lock nothing can be said to have drifted from it."""
    if record is None:
        return "not run"
    if lock is None or lock.lock_digest is None or record.lock_digest == lock.lock_digest:
        return None
    if record.lock_digest is None:
        return f"not pinned, {record.run_id} was made without a lock"
    return f"drifted since {record.run_id}, the newest lock is {lock.run_id}"


def _estimate_of(records: Mapping[str, Record]) -> bool:
    """Whether an estimate came to an end; it is asked for where nothing was measured."""
    record = records.get("estimate")
    return record is not None and record.status in ("ok", "does_not_fit")


def _not_built(
    *,
    hardware: str,
    precision: str,
    activation_checkpointing: str,
    measured: bool,
    estimated: bool,
    overrides: Sequence[str],
) -> list[Missing]:
    """Evidence that this run needs and that this version cannot produce."""
    missing = []
    if hardware != "cpu" and not measured and not estimated:
        what = f"estimate: nothing was measured on {hardware}, nor estimated"
        missing.append(Missing(what, stage_command("estimate", overrides=overrides)))
    choices = []
    if precision != "fp32":
        choices.append(f"precision={precision}")
    if activation_checkpointing != "none":
        choices.append(f"activation_checkpointing={activation_checkpointing}")
    if choices:
        what = f"numerics: what {' and '.join(choices)} does to the loss was not measured, {NOT_BUILT}"
        missing.append(Missing(what, None))
    if hardware != "cpu":
        missing.append(Missing(f"qualify: the software stack is not qualified for {hardware}, {NOT_BUILT}", None))
    return missing


def _reservations(reservations: Sequence[ReservationOutcome], *, chosen: str | None, run_id: str) -> Finding:
    """Whether the chosen reservation holds the run (any, when none is chosen), and which one would."""
    if not reservations:
        return Finding("missing", "reservation: none was given to compare with")
    fitting = [outcome for outcome in reservations if outcome.fits]
    refused = next((outcome for outcome in reservations if outcome.name == chosen and not outcome.fits), None)
    if refused is not None and fitting:
        longer = min(fitting, key=lambda outcome: outcome.hours_available)
        text = (
            f"The run takes {_hours(refused.slow_run_hours)} at its slow edge, {_hours(-refused.margin_hours)} more "
            f"than {refused.name} has; reservation={longer.name} would hold it (projected, budget {run_id})."
        )
        return Finding("against", text)
    if fitting:
        best = next((outcome for outcome in fitting if outcome.name == chosen), None) or min(
            fitting, key=lambda outcome: outcome.hours_available
        )
        text = (
            f"The run takes {_hours(best.slow_run_hours)} at its slow edge and fits {best.name} "
            f"({_hours(best.hours_available)}) with {_hours(best.margin_hours)} to spare (projected, budget {run_id})."
        )
        return Finding("for", text)
    longest = max(reservations, key=lambda outcome: outcome.hours_available)
    text = (
        f"No reservation is long enough: the run takes {_hours(longest.slow_run_hours)} at its slow edge, the longest "
        f"({longest.name}) has {_hours(longest.hours_available)}, {_hours(-longest.margin_hours)} too few "
        f"(projected, budget {run_id})."
    )
    return Finding("against", text)


def _conclude(found: Mapping[str, Finding], *, missing: list[Missing], evidence: dict[str, str]) -> Verdict:
    against = [finding.text for finding in found.values() if finding.weight == "against"]
    if against:
        return Verdict(NO_GO, against, missing, evidence)
    supporting = [text for finding in found.values() for text in (finding.text, *finding.notes)]
    if not missing:
        return Verdict(GO, supporting, missing, evidence)
    count = len(missing)
    pieces = "1 piece of evidence is" if count == 1 else f"{count} pieces of evidence are"
    return Verdict(
        INCOMPLETE, [f"{pieces} missing; nothing found so far speaks against the run.", *supporting], missing, evidence
    )


def _hours(hours: float) -> str:
    return format_seconds(hours * HOUR)
