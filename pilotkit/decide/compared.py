"""Estimates beside measurements: one comparison, and which of them speak of a hardware. Called by stage `estimate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilotkit.decide.calibration import MeasuredRun
from pilotkit.decide.measured import Measurement
from pilotkit.decide.step_time import Efficiency, Rates, estimate_step_time
from pilotkit.decide.study import Candidate
from pilotkit.records.comparisons import Comparison
from pilotkit.records.record import Record


def compare(
    measurement: Measurement,
    traced: Mapping[str, Any],
    *,
    hardware: Mapping[str, Any],
    family: str,
    number_format: str,
    compiled: bool,
    allocator: str,
    overhead_bytes: int,
    efficiency: Efficiency,
    earlier: Sequence[Record],
) -> Comparison:
    """A measurement beside what the worker found of its shape. `earlier` are records of estimates."""
    metrics = traced["metrics"]
    steps = [metrics["steady_step_peak_bytes"]]
    if hardware["device_type"] != "cpu":
        # The processor's meter looks at one late step; an accelerator's at all steps since the model was built.
        steps.append(metrics["first_step_peak_bytes"])
    estimated = {
        "peak_allocated_bytes": max(steps),
        "peak_reserved_bytes": metrics[f"{allocator}_reserved_bytes"],
        "overhead_bytes": overhead_bytes,
        "buckets_bytes": metrics.get("buckets_bytes", 0),
    }
    peaks = {
        "peak_flops": hardware["peak_flops"].get(number_format),
        "memory_bandwidth": hardware["memory_bandwidth_bytes_per_second"],
        "link_bandwidth": hardware["link_bandwidth_bytes_per_second"],
    }
    return Comparison(
        key=measurement.key,
        source=measurement.source,
        measured_at=measurement.measured_at,
        hardware=hardware["name"],
        device_type=hardware["device_type"],
        family=family,
        number_format=number_format,
        compiled=compiled,
        rates={name: float(value) for name, value in peaks.items() if value},
        efficiency=dataclasses.asdict(efficiency),
        shape=measurement.shape,
        work=traced["work"],
        estimated=estimated,
        measured=measurement.figures,
        spread=measurement.spread,
        told=_told(measurement, earlier),
    )


def _told(measurement: Measurement, earlier: Sequence[Record]) -> dict[str, Any]:
    """What the last estimate of the same run had said before it was measured."""
    shape = measurement.shape
    for record in reversed(earlier):
        same = record.config_digest == measurement.config_digest and record.started_at < measurement.measured_at
        candidate = Candidate(record.config, {}) if same else None
        if candidate is not None and (candidate.strategy, candidate.num_devices) == (
            shape["strategy"],
            shape["num_devices"],
        ):
            names = ("step_seconds", "peak_allocated_bytes", "device_used_bytes")
            figures = {name: record.metrics[name] for name in names if name in record.metrics}
            return {"run_id": record.run_id, "calibration": record.details.get("calibration", ""), **figures}
    return {}


def run_of(found: Comparison, *, rates: Rates | None, efficiency: Efficiency, family: str) -> MeasuredRun:
    """A comparison as `calibrate` takes it. `rates`: of the hardware today; None: no time can be made of it."""
    raw = None
    if rates is not None and found.work:
        raw = estimate_step_time(
            found.work,
            rates=rates,
            gradient_bytes=found.estimated.get("buckets_bytes", 0.0),
            dp_replicate=found.shape["num_devices"],
            efficiency=efficiency,
        )
    measured, estimated = found.measured, found.estimated
    reserved, used = measured.get("peak_reserved_bytes"), measured.get("device_used_bytes")
    return MeasuredRun(
        key=found.key,
        time=raw,
        step_seconds=measured.get("step_seconds"),
        allocated=_pair(estimated, measured, "peak_allocated_bytes"),
        reserved=_pair(estimated, measured, "peak_reserved_bytes"),
        overhead=(estimated["overhead_bytes"], used - reserved)
        if used and reserved and used > reserved and estimated["overhead_bytes"]
        else None,
        is_family=found.family == family,
        spread=found.spread,
    )


def _pair(estimated: Mapping[str, float], measured: Mapping[str, float], name: str) -> tuple[float, float] | None:
    return (estimated[name], measured[name]) if estimated.get(name) and measured.get(name) else None


@dataclass(frozen=True)
class Pool:
    """The comparisons that speak of one hardware and format, and whether another hardware stands in for it."""

    comparisons: list[Comparison]
    carried_from: str = ""


def pool_of(
    comparisons: Sequence[Comparison], *, hardware: str, device_type: str, number_format: str, compiled: bool
) -> Pool:
    """Those of this hardware; where there are none, of the accelerator that was measured most. A processor stands in
    for nothing."""
    alike = [item for item in comparisons if (item.number_format, item.compiled) == (number_format, compiled)]
    own = [item for item in alike if item.hardware == hardware]
    others = [item for item in alike if item.device_type != "cpu" and item.rates.get("peak_flops")]
    if own or device_type == "cpu" or not others:
        return Pool(own)
    names = sorted({item.hardware for item in others}, key=lambda name: -sum(item.hardware == name for item in others))
    return Pool([item for item in others if item.hardware == names[0]], carried_from=names[0])
