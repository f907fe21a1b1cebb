"""What one record says for or against the run, in a full sentence with its numbers and its run id.

Called by `pilotkit.decide.verdict` for each stage that a verdict rests on. Judges one record at a time and decides
nothing about the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pilotkit.records.record import Record
from pilotkit.units import format_bytes, format_count, format_seconds

Weight = Literal["for", "against", "missing"]
# Caches and steadier clocks make a few percent; more than that is a disturbed measurement of one of the two.
BELIEVABLE_EFFICIENCY = 1.15
FAULTS = ("failed", "mismatch", "does_not_fit")


@dataclass(frozen=True)
class Finding:
    """One sentence, and which way it weighs. `notes` are sentences that a reader must see beside it, `cautions` those
    that come before anything else."""

    weight: Weight
    text: str
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()


def weigh(record: Record, *, strategy: str | None, recomputation: str = "none") -> Finding:
    """Weigh one record of `lock`, `prove`, `measure`, `numerics`, `pilot`, `restore`, `qualify` or `budget`.

    `strategy` is that of the intended run; the pilot is judged by it when it ran it. `recomputation` is its
    activation checkpointing, which the record of `numerics` is asked for.
    """
    if record.status != "ok":
        return _not_ok(record)
    if record.stage == "pilot":
        return _pilot(record, strategy=strategy)
    if record.stage == "numerics":
        return _numerics(record, recomputation=recomputation)
    return _READERS[record.stage](record)


def void_because(record: Record, *, lock: Record | None) -> str | None:
    """Why a record cannot count beside the newest lock of its configuration, or None.

    Without a lock nothing can be said to have drifted from it.
    """
    if lock is None or lock.lock_digest is None or record.lock_digest == lock.lock_digest:
        return None
    if record.lock_digest is None:
        return f"not pinned, {record.run_id} was made without a lock"
    gate: Mapping[str, Any] = record.provenance.get("gate") or {}
    fields = ", ".join(str(item["field"]) for item in gate.get("drift") or ())
    what = f" ({fields})" if fields and str(gate.get("against", "")).endswith(lock.run_id) else ""
    return f"drifted since {record.run_id}, the newest lock is {lock.run_id}{what}"


def spread_of(records: Mapping[str, Record], *, strategy: str) -> float | None:
    """Coefficient of variation of the intended run's step time (0.03: 3 %), from the record its steps come from."""
    stage, metric = ("measure", "step_spread") if strategy == "single" else ("pilot", f"{strategy}_step_spread")
    record = records.get(stage)
    return record.metrics.get(metric) if record is not None else None


def _not_ok(record: Record) -> Finding:
    where = f"({record.stage} {record.run_id})"
    summary = (record.problem.summary if record.problem else "it left no reason").strip().rstrip(".")
    strategies: Mapping[str, Mapping[str, Any]] = record.details.get("strategies") or {}
    statuses = {str(found.get("status")) for found in strategies.values()}
    some_fault = bool(statuses.intersection(FAULTS)) and "ok" not in statuses
    faulty = record.status in FAULTS or (record.status == "timed_out" and some_fault)
    if record.stage in ("lock", "budget") or not faulty:
        status = record.status.replace("_", " ")
        return Finding("missing", f"{status} {where}: {summary}.")
    if record.status == "does_not_fit":
        return Finding(
            "against", f"The run does not fit into memory{_memory_asked(record, summary=summary)}: {summary} {where}."
        )
    if record.stage == "pilot":
        return Finding("against", f"No strategy of the pilot worked{_strategy_notes(record)}: {summary} {where}.")
    verb = {
        "prove": "One complete step was not proved",
        "measure": "The step could not be measured",
        "numerics": "Precision and recomputation could not be judged",
        "qualify": "The software stack was tried as one set",
        "restore": "Training did not continue as if it had never stopped",
    }[record.stage]
    return Finding("against", f"{verb}: {summary} {where}.")


def _memory_asked(record: Record, *, summary: str) -> str:
    """` (1.00 GiB asked for, 3.50 GiB in use, limit 4.00 GiB)`: what the record knows and the summary does not say."""
    words = {
        "requested_bytes": "{} asked for",
        "peak_allocated_bytes": "{} in use at the peak",
        "memory_limit_bytes": "limit {}",
    }
    sizes = {name: format_bytes(record.metrics[name]) for name in words if name in record.metrics}
    known = [words[name].format(size) for name, size in sizes.items() if size not in summary]
    return f" ({', '.join(known)})" if known else ""


def _strategy_notes(record: Record) -> str:
    strategies: Mapping[str, Mapping[str, Any]] = record.details.get("strategies") or {}
    notes = [f"{name}: {_note(found)}" for name, found in strategies.items()]
    return f" ({'; '.join(notes)})" if notes else ""


def _note(found: Mapping[str, Any]) -> str:
    status = str(found.get("status", "")).replace("_", " ")
    return f"{status}, {found['note']}" if found.get("note") else status


def _lock(record: Record) -> Finding:
    count = record.metrics.get("num_distributions", 0)
    loose = [_sentence(f"Not pinned: {item}") for item in record.details.get("problems") or ()]
    text = f"Everything is pinned, {count:.0f} installed distributions among it (lock {record.run_id})."
    if loose:
        text = (
            f"The run is pinned but for {len(loose)} thing{'s' if len(loose) > 1 else ''}, {count:.0f} installed "
            f"distributions among what is (lock {record.run_id})."
        )
    return Finding("for", text, tuple(loose))


def _prove(record: Record) -> Finding:
    card: list[Mapping[str, Any]] = record.details.get("card") or []
    failed = [str(item["item"]) for item in card if item["verdict"] == "FAIL"]
    if failed:
        text = f"One complete step was not proved: {', '.join(failed)} failed (prove {record.run_id})."
        return Finding("against", text)
    passed = sum(item["verdict"] == "PASS" for item in card)
    text = f"One complete step works on one device: {passed} of {len(card)} checks passed (prove {record.run_id})."
    return Finding("for", text, _left_out(card, name="item", record=record))


def _measure(record: Record) -> Finding:
    metrics = record.metrics
    facts = []
    if metrics.get("step_seconds", 0.0) <= 0:
        return Finding("missing", f"no step time is in the record (measure {record.run_id})")
    if "step_seconds" in metrics:
        spread = f", spread {_percent(metrics['step_spread'], digits=1)}" if "step_spread" in metrics else ""
        facts.append(f"takes {format_seconds(metrics['step_seconds'])} (measured{spread})")
    # What the whole process takes of the device decides, where that is known; tensors alone take less.
    sizes = ("largest_own_bytes", "device_own_bytes", "largest_peak_bytes", "peak_allocated_bytes")
    peak = next((metrics[name] for name in sizes if name in metrics), None)
    if peak is not None:
        limit = metrics.get("memory_limit_bytes")
        share = f" of {format_bytes(limit)}, {_percent(peak / limit)}" if limit else ""
        facts.append(f"peaks at {format_bytes(peak)}{share} (measured)")
    text = f"A step on one device {' and '.join(facts) or 'was measured'} (measure {record.run_id})."
    return Finding("for", text, _warnings(record))


def _numerics(record: Record, *, recomputation: str) -> Finding:
    """The precision's own verdict, and whether the chosen recomputation still computes the same."""
    where = f"(numerics {record.run_id})"
    precision: Mapping[str, Any] = record.details.get("precision") or {}
    rows: list[Mapping[str, Any]] = record.details.get("recomputation") or []
    chosen = next((row for row in rows if row["mode"] == recomputation), None)
    reasons = " ".join(_sentence(str(reason)) for reason in precision.get("reasons") or ())
    if precision.get("verdict") == "reject":
        return Finding("against", f"precision={precision['name']} is rejected: {reasons} {where}.")
    if chosen is not None and chosen.get("differs"):
        return Finding("against", f"Recomputation changes the training: {chosen['note']} {where}.")
    if precision.get("verdict") == "undecided":
        return Finding("missing", f"precision={precision['name']} is undecided: {reasons} {where}")
    if recomputation != "none" and (chosen is None or not chosen.get("note") or chosen["status"] != "ok"):
        return Finding("missing", f"activation_checkpointing={recomputation} was not compared with none {where}")
    texts = [f"precision={precision['name']} is accepted: {reasons}"] if precision else []
    if chosen is not None and recomputation != "none":
        texts.append(_sentence(f"Activation checkpointing: {chosen['note']} (measured)"))
    return Finding("for", f"{' '.join(texts) or 'fp32 without recomputation leaves nothing to judge.'} {where}.")


def _pilot(record: Record, *, strategy: str | None) -> Finding:
    strategies: Mapping[str, Mapping[str, Any]] = record.details.get("strategies") or {}
    where = f"(pilot {record.run_id})"
    worked = [name for name, found in strategies.items() if found.get("status") == "ok"]
    if strategies and not worked:
        return Finding("against", f"No strategy of the pilot worked{_strategy_notes(record)} {where}.")
    if strategy is not None and strategy in strategies and strategy not in worked:
        weight: Weight = "against" if strategies[strategy].get("status") in FAULTS else "missing"
        text = f"The intended strategy {strategy} did not work ({_note(strategies[strategy])})"
        return Finding(weight, f"{text}; {', '.join(worked)} did {where}.")
    if strategy in ("ddp", "fsdp", "hsdp") and strategy not in strategies:
        return Finding("missing", f"the intended strategy {strategy} was not among those that ran {where}")
    recommended = (record.details.get("recommendation") or {}).get("strategy")
    shown = strategy if strategy in worked else recommended
    metrics, devices = record.metrics, int(record.metrics.get("world_size", 0))
    facts = ""
    if f"{shown}_tokens_per_second" in metrics:
        facts = f" at {format_count(metrics[f'{shown}_tokens_per_second'])} tokens/s (measured)"
    efficiency = metrics.get(f"{shown}_scaling_efficiency", 0.0)
    if efficiency > BELIEVABLE_EFFICIENCY:
        text = f"{shown} on {devices} devices makes {_percent(efficiency)} of {devices} times one device"
        return Finding("missing", f"{text}, which cannot be: one of the two was disturbed; measure again {where}")
    if f"{shown}_scaling_efficiency" in metrics:
        facts += f", {_percent(metrics[f'{shown}_scaling_efficiency'])} of {devices} times one device"
    text = f"{shown or 'Training'} runs on {devices} devices{facts} {where}."
    notes = list(_warnings(record))
    if strategy in worked and recommended and recommended != strategy:
        notes.append(f"The pilot recommends {recommended} over {strategy} {where}.")
    cautions = []
    if f"{shown}_scaling_efficiency" in metrics and efficiency * devices < 1:
        cautions.append(
            f"Slower than one device: {devices} devices with {shown} do {efficiency * devices:.2f} times the work of "
            f"one (measured) {where}."
        )
    return Finding("for", text, tuple(notes), tuple(cautions))


def _restore(record: Record) -> Finding:
    comparison: list[Mapping[str, Any]] = record.details.get("comparison") or []
    failed = [str(item["component"]) for item in comparison if item["verdict"] == "FAIL"]
    where = f"(restore {record.run_id})"
    if failed:
        text = f"Training did not continue as if it had never stopped: {', '.join(failed)} differ {where}."
        return Finding("against", text)
    steps = record.metrics.get("num_steps")
    over = f" over {steps:.0f} steps" if steps is not None else ""
    difference = record.metrics.get("max_loss_difference")
    facts = f"; the loss differs by {difference:.3g} at most{over} (measured)" if difference is not None else over
    text = f"A run that was stopped continues in a new process{facts} {where}."
    return Finding("for", text, _left_out(comparison, name="component", record=record))


def _qualify(record: Record) -> Finding:
    card: list[Mapping[str, Any]] = record.details.get("card") or []
    passed = sum(row["verdict"] == "PASS" for row in card)
    digest = str(record.details.get("set_digest", ""))[:12]
    text = f"The software stack is qualified as one set ({digest}): {passed} checks passed (qualify {record.run_id})."
    left_out = sum(row["verdict"] == "NOT RUN" for row in card)
    notes = (
        (f"Not compared by qualify: {left_out} of {len(card)} checks (qualify {record.run_id}).",) if left_out else ()
    )
    return Finding("for", text, (*notes, *_warnings(record)))


def _budget(record: Record) -> Finding:
    ledger: list[Mapping[str, Any]] = record.details.get("ledger") or []
    steps: Mapping[str, Any] = next((line for line in ledger if line["part"] == "steps"), {})
    total = record.metrics.get("total_seconds")
    if total is None:
        return Finding("missing", f"no step time, {steps.get('how', 'no line of steps')} (budget {record.run_id})")
    if steps.get("origin") == "projected":
        return Finding("missing", f"the step time is only projected ({steps['how']}; budget {record.run_id})")
    goodput = record.metrics.get("goodput")
    share = f", {_percent(goodput, digits=1)} of it in optimizer steps" if goodput is not None else ""
    text = (
        f"The whole run takes {format_seconds(total)} (projected from measured parts){share} (budget {record.run_id})."
    )
    left_out = [str(line["part"]) for line in ledger if line["seconds"] is None and not line.get("included_in")]
    notes = (f"Not known and not in that total: {', '.join(left_out)} (budget {record.run_id}).",) if left_out else ()
    return Finding("for", text, (*notes, *_warnings(record)))


def _left_out(rows: list[Mapping[str, Any]], *, name: str, record: Record) -> tuple[str, ...]:
    """A card may be without a failure because something was not tried: say what."""
    left_out = [str(row[name]) for row in rows if row["verdict"] == "NOT RUN"]
    return (f"Not run by {record.stage}: {', '.join(left_out)} ({record.stage} {record.run_id}).",) if left_out else ()


def _warnings(record: Record) -> tuple[str, ...]:
    where = f"({record.stage} {record.run_id})"
    return tuple(f"{str(text).rstrip('.')} {where}." for text in record.details.get("warnings") or ())


def _percent(ratio: float, *, digits: int = 0) -> str:
    return f"{100 * ratio:.{digits}f} %"


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


_READERS: dict[str, Callable[[Record], Finding]] = {
    "lock": _lock,
    "prove": _prove,
    "measure": _measure,
    "restore": _restore,
    "qualify": _qualify,
    "budget": _budget,
}
