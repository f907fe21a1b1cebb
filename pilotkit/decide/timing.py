"""How long one thing took, as a record timed it: mean, 95th percentile, how many times, on how many devices.

Called by `pilotkit.decide.ledger` and `pilotkit.decide.scaling`. Reads what is in the records and fills no gap.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilotkit.records.record import Record

# A quantity may be measured by the stage itself or come from an estimate of it.
STRATEGIES = ("ddp", "fsdp", "hsdp")


@dataclass(frozen=True)
class Timing:
    """`each_seconds` is the mean of `samples` (None: the record does not say how many, and it may be their median).

    `spread` is their coefficient of variation. `num_devices` is None when the record does not say it.
    """

    each_seconds: float
    name: str
    record: Record
    samples: int | None = None
    p95_seconds: float | None = None
    spread: float | None = None
    num_devices: int | None = None

    @property
    def origin(self) -> str:
        """Of the figure itself, before it is carried anywhere. A corrected estimate is a projection."""
        if self.record.stage != "estimate":
            return "measured"
        return "projected" if self.band is not None else "estimated"

    @property
    def band(self) -> float | None:
        """Half-width of a corrected estimate, as a share; None for what was measured and for what nothing corrected."""
        found = self.record.details.get("step_band") if self.record.stage == "estimate" else None
        return None if found is None else float(found)


def find_timing(records: Mapping[str, Record], *sources: tuple[str, str]) -> Timing | None:
    """The first (stage, metric) that some record has."""
    for stage, metric in sources:
        record = records.get(stage)
        if record is not None and metric in record.metrics:
            each = record.metrics[metric]
            samples = record.metrics.get(f"num_{metric.removesuffix('_seconds')}_samples")
            return Timing(
                each,
                f"{metric} of {stage}",
                record,
                samples=int(samples) if samples else 1,
                p95_seconds=record.metrics.get(f"{metric.removesuffix('_seconds')}_p95_seconds"),
                num_devices=_devices_of(record),
            )
    return None


def step_timing(records: Mapping[str, Record], *, strategy: str) -> Timing | None:
    """One optimizer step of this strategy; of an estimate where nothing was run. None when neither is there."""
    stage, prefix = ("measure", "") if strategy == "single" else ("pilot", f"{strategy}_")
    record = records.get(stage)
    metric = f"{prefix}step_seconds"
    if record is not None and metric in record.metrics:
        return _step(record, metric, steps=_step_list(record, strategy=strategy), prefix=prefix)
    estimate = records.get("estimate")
    if estimate is not None and "step_seconds" in estimate.metrics:
        devices = int(estimate.metrics.get("world_size", 1))
        words = str(estimate.details.get("calibration", "uncalibrated"))
        name = f"step_seconds of estimate, {words}"
        return Timing(estimate.metrics["step_seconds"], name, estimate, num_devices=devices)
    return None


def _step(record: Record, metric: str, *, steps: Sequence[float], prefix: str) -> Timing:
    metrics = record.metrics
    count = metrics.get(f"{prefix}num_measured_steps")
    known = {
        "p95_seconds": metrics.get(f"{prefix}step_p95_seconds"),
        "spread": metrics.get(f"{prefix}step_spread"),
        "num_devices": _devices_of(record),
    }
    if not steps:
        samples = int(count) if count else None
        return Timing(metrics[metric], f"{metric} of {record.stage}", record, samples=samples, **known)  # type: ignore[arg-type]
    # A run is the sum of its steps, so the mean counts; a median leaves the slow ones out.
    mean = statistics.fmean(steps)
    if known["spread"] is None and len(steps) > 1:
        known["spread"] = statistics.stdev(steps) / mean
    if known["p95_seconds"] is None:
        known["p95_seconds"] = sorted(steps)[max(math.ceil(0.95 * len(steps)) - 1, 0)]
    name = f"mean of {len(steps)} {prefix.removesuffix('_')} steps of {record.stage}".replace("  ", " ")
    return Timing(mean, name, record, samples=len(steps), **known)  # type: ignore[arg-type]


def _step_list(record: Record, *, strategy: str) -> list[float]:
    details: Mapping[str, Any] = record.details
    if strategy != "single":
        details = (details.get("strategies") or {}).get(strategy) or {}
    found = details.get("steps") or []
    return [float(seconds) for seconds in found] if isinstance(found, list) else []


def _devices_of(record: Record) -> int | None:
    if record.stage in ("prove", "measure"):
        return 1
    found = record.metrics.get("world_size")
    return None if found is None else int(found)
