"""Does one option fit into a device's memory: measured where it ran, else estimated with its band, else not known.

Called by `pilotkit.decide.option`. An estimate whose band holds the limit is not an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pilotkit.decide.study import Candidate
from pilotkit.records.record import Record
from pilotkit.units import format_bytes

Answer = Literal["fits", "does not fit", "not known"]


@dataclass(frozen=True)
class Fit:
    """`peak_bytes` and `limit_bytes` of one device, None where the record does not say. `sentence` has the numbers."""

    answer: Answer
    origin: str
    sentence: str
    peak_bytes: float | None = None
    limit_bytes: float | None = None


def fit_of(candidate: Candidate) -> Fit:
    """The best evidence there is: the pilot of this strategy, the measurement of one device, the estimate."""
    pilot = candidate.records.get("pilot")
    status = ((pilot.details.get("strategies") or {}).get(candidate.strategy) or {}).get("status") if pilot else None
    if pilot is not None and status == "does_not_fit":
        return _too_large(pilot, candidate)
    if pilot is not None and f"{candidate.strategy}_step_seconds" in pilot.metrics:
        return _ran(pilot, candidate, prefix=f"{candidate.strategy}_")
    measure = candidate.records.get("measure")
    # What does not fit on one device may still fit when it is sharded over several.
    sharded = candidate.strategy in ("fsdp", "hsdp")
    if measure is not None and measure.status == "does_not_fit" and not sharded:
        return _too_large(measure, candidate)
    if measure is not None and "step_seconds" in measure.metrics:
        return _ran(measure, candidate, prefix="")
    estimate = candidate.records.get("estimate")
    if estimate is not None and "peak_allocated_bytes" in estimate.metrics:
        return _estimated(estimate, candidate)
    return Fit("not known", "not run", f"nothing was run or estimated on {candidate.hardware}")


def _limit(record: Record, candidate: Candidate) -> float:
    return float(record.metrics.get("memory_limit_bytes", candidate.config["hardware"]["memory_bytes"]))


def _too_large(record: Record, candidate: Candidate) -> Fit:
    limit = _limit(record, candidate)
    peak = record.metrics.get("peak_allocated_bytes")
    held = f"{format_bytes(peak)} were in use and it asked for more" if peak else "it ran out of memory"
    text = f"does not fit into {format_bytes(limit)}: {held} (measured, {record.stage} {record.run_id})"
    return Fit("does not fit", "measured", text, peak, limit)


def _ran(record: Record, candidate: Candidate, *, prefix: str) -> Fit:
    limit = _limit(record, candidate)
    names = ("device_used_bytes", "peak_reserved_bytes", "peak_allocated_bytes")
    peak = next((record.metrics[prefix + name] for name in names if prefix + name in record.metrics), None)
    used = f", {format_bytes(peak)} of {format_bytes(limit)}" if peak is not None else ""
    return Fit("fits", "measured", f"fits{used} (measured, {record.stage} {record.run_id})", peak, limit)


def _estimated(record: Record, candidate: Candidate) -> Fit:
    """What the device would hold, overhead included; an answer only where the whole band lies on one side."""
    limit, metrics = _limit(record, candidate), record.metrics
    peak = metrics.get("device_used_bytes", metrics["peak_allocated_bytes"])
    low, high = metrics.get("device_used_low_bytes", peak), metrics.get("device_used_high_bytes", peak)
    if low != high:
        band = f"{format_bytes(low)} to {format_bytes(high)}, {record.details.get('memory_calibration', '')}"
    else:
        band = f"{format_bytes(peak)}, uncalibrated"
    answer: Answer = "fits" if high <= limit else "does not fit" if low > limit else "not known"
    words = {"fits": "fits", "does not fit": "does not fit", "not known": "may or may not fit"}[answer]
    text = f"{words}: {band}, against {format_bytes(limit)} (estimated, estimate {record.run_id})"
    return Fit(answer, "estimated", text, peak, limit)
