"""Stage `estimate`: will it fit, and how fast, on hardware that is not here? Calculated, never run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pilotkit.decide.fit import Overhead, judge_fit, overhead_of
from pilotkit.decide.step_time import Efficiency, StepTime, estimate_step_time
from pilotkit.errors import StageRefused
from pilotkit.launch.outcome import Outcome
from pilotkit.records.record import Failure, Metrics
from pilotkit.report.estimates import estimate_table, grid_table
from pilotkit.stages.run import Run, StageResult, not_ok
from pilotkit.units import format_bytes


def run(run: Run) -> StageResult:
    """Trace the run in one worker process, add what no trace sees, and compare with the hardware option's memory."""
    outcome = run.work("estimate")
    if outcome.status != "ok":
        return _explained(run, outcome)
    found: dict[str, float] = outcome.result["metrics"]
    overhead = _overhead(run)
    hardware = run.config.hardware
    # The processor has no caching allocator: there, what is allocated is what is used.
    if hardware.device_type == "cpu":
        del found["native_reserved_bytes"], found["expandable_reserved_bytes"]
        held = found["peak_allocated_bytes"]
    else:
        held = found["peak_reserved_bytes"] = found[f"{run.config.estimate.allocator}_reserved_bytes"]
    fit = judge_fit(
        held,
        overhead=overhead,
        memory_bytes=hardware.memory_bytes,
        headroom=run.config.estimate.headroom,
    )
    metrics = Metrics()
    metrics.add("estimated", found)
    metrics.add("estimated", overhead_bytes=overhead.num_bytes, device_used_bytes=fit.needed_bytes)
    metrics.add("given", memory_limit_bytes=hardware.memory_bytes)
    time = _step_time(run, outcome.result["work"], found)
    if time is not None:
        peak = hardware.peak_flops[run.config.precision.flops_format]
        tokens = run.arithmetic.tokens_per_step / time.step_seconds
        metrics.add(
            "estimated",
            step_seconds=time.step_seconds,
            step_low_seconds=time.low_seconds,
            step_high_seconds=time.high_seconds,
            tokens_per_second=tokens,
            tokens_per_second_per_device=tokens / run.arithmetic.world_size,
            hardware_flops_utilization=time.num_flops / time.step_seconds / peak,
        )
    details: dict[str, Any] = {
        "step_parts": time.parts if time is not None else {},
        **outcome.result["details"],
        "overhead": overhead.lines,
        "fits": fit.fits,
        "calibration": "uncalibrated",
        "threads": run.threads,
    }
    if time is None:
        details["notes"].append(f"no step time: {_why_no_time(run)}")
    if "grid" in outcome.result:
        details["grid"] = _judged(run, outcome.result["grid"], overhead)
    details["warnings"] = list(details.pop("notes"))
    run.console.table(estimate_table(metrics.values, details, hardware=hardware.name))
    if "grid" in details:
        run.console.table(grid_table(details["grid"]))
    if fit.fits:
        return StageResult("ok", metrics, details)
    summary = (
        f"estimated {format_bytes(fit.needed_bytes)} on {hardware.name}, of which {format_bytes(fit.allowed_bytes)} "
        f"may be used: {format_bytes(hardware.memory_bytes)} less a headroom of {run.config.estimate.headroom:.0%}"
    )
    return StageResult("does_not_fit", metrics, details, problem=Failure(summary, cause=_where(details)))


def _step_time(run: Run, work: Mapping[str, Any], found: Mapping[str, float]) -> StepTime | None:
    if _why_no_time(run):
        return None
    config, hardware = run.config, run.config.hardware
    options = config.estimate
    link = hardware.link_bandwidth_bytes_per_second or 1.0
    if config.parallelism.num_nodes > 1:
        link = min(link, options.network_bytes_per_second or link)
    return estimate_step_time(
        work,
        peak_flops=hardware.peak_flops[config.precision.flops_format],
        memory_bandwidth=hardware.memory_bandwidth_bytes_per_second or 1.0,
        link_bandwidth=link,
        gradient_bytes=found.get("buckets_bytes", 0.0),
        dp_replicate=run.arithmetic.dp_replicate,
        efficiency=Efficiency(
            matmul=options.matmul_efficiency,
            attention=options.attention_efficiency,
            elementwise=options.bandwidth_efficiency,
            link=options.link_efficiency,
        ),
    )


def _why_no_time(run: Run) -> str:
    """What the hardware option lacks for a time; empty when there is one."""
    config, hardware = run.config, run.config.hardware
    number_format = config.precision.flops_format
    lacking = [
        name
        for name, value in (
            (f"hardware.peak_flops.{number_format}", hardware.peak_flops.get(number_format)),
            ("hardware.memory_bandwidth_bytes_per_second", hardware.memory_bandwidth_bytes_per_second),
            ("hardware.link_bandwidth_bytes_per_second", hardware.link_bandwidth_bytes_per_second),
            (
                "estimate.network_bytes_per_second",
                config.estimate.network_bytes_per_second if config.parallelism.num_nodes > 1 else 1.0,
            ),
        )
        if not value
    ]
    return f"{', '.join(lacking)} is not given" if lacking else ""


def _judged(run: Run, grid: Mapping[str, Any], overhead: Overhead) -> dict[str, Any]:
    """Each point against the device, and for each sequence length the largest micro-batch of the grid that fits."""
    hardware = run.config.hardware
    points = []
    for point in grid["points"]:
        held = point["peak_allocated_bytes" if hardware.device_type == "cpu" else "peak_reserved_bytes"]
        fit = judge_fit(
            held, overhead=overhead, memory_bytes=hardware.memory_bytes, headroom=run.config.estimate.headroom
        )
        points.append({**point, "needed_bytes": fit.needed_bytes, "fits": fit.fits})
    largest = {
        str(seq_len): max(
            (point["micro_batch_size"] for point in points if point["fits"] and point["seq_len"] == seq_len), default=0
        )
        for seq_len in sorted({point["seq_len"] for point in points})
    }
    return {"points": points, "how": grid["how"], "largest_micro_batch": largest}


def _overhead(run: Run) -> Overhead:
    options = run.config.estimate
    return overhead_of(
        device_type=run.config.hardware.device_type,
        world_size=run.arithmetic.world_size,
        context_bytes=options.context_bytes,
        communication_bytes=options.communication_bytes,
        workspace_bytes=options.workspace_bytes,
    )


def _where(details: Mapping[str, Any]) -> str:
    peak = max(details["peaks"], key=lambda item: int(item["peak_bytes"]))
    return f"the peak stands in the {peak['step']}: {peak['where']}"


def _explained(run: Run, outcome: Outcome) -> StageResult:
    """A model that cannot be traced is refused, with what to do; a worker that died is a failure like any other."""
    errors = run.run_dir.phase("estimate").errors()
    if errors and errors[0].get("type") == "EstimateError":
        raise StageRefused(str(errors[0]["summary"]))
    return not_ok(run, outcome)
