"""Stage `estimate`: will it fit, and how fast, on hardware that is not here? Calculated, never run.

In order: learn from what was measured, trace in one worker process, correct, add what no trace sees, compare with the
hardware option, and answer what else was asked.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from pilotkit.config.estimate_options import EstimateOptions
from pilotkit.config.identity import traced_digest
from pilotkit.decide.fit import Fit
from pilotkit.decide.step_time import StepTime
from pilotkit.errors import StageRefused
from pilotkit.launch.outcome import Outcome
from pilotkit.records import atomic, shared_traces
from pilotkit.records.record import Failure, Metrics
from pilotkit.report.estimate_tables import answer_tables, comparison_table, estimate_table, grid_table
from pilotkit.stages.calibrating import History, comparison_rows, learn, overhead_for, set_aside_notes
from pilotkit.stages.judging import Judge
from pilotkit.stages.run import Run, StageResult, not_ok
from pilotkit.units import format_bytes

ANALYTIC = "analytic"


def run(run: Run) -> StageResult:
    """Estimate the run's own shape, and whatever grid, limits and hardware the options ask about."""
    judge = Judge(run, learn(run))
    outcome = _traced(run, limit_bytes=judge.limit_bytes())
    if outcome.status != "ok":
        return _explained(run, outcome)
    result = outcome.result
    if result["details"].get("method") == ANALYTIC:
        judge = Judge(run, History(notes=judge.history.notes))  # corrections are those of traces
    metrics, details, fit = _own_shape(run, judge, result)
    if "grid" in result:
        details["grid"] = _judged_grid(judge, result["grid"])
    if "answers" in result:
        details["answers"] = result["answers"]
    if "by_devices" in result:
        details["by_devices"] = [judge.device_row(entry) for entry in result["by_devices"]]
        if run.config.estimate.compare_hardware:
            details["hardware"] = judge.hardware_rows(result["by_devices"])
    rows = comparison_rows(judge.calibrated())
    details["compared"] = rows
    run.console.table(estimate_table(metrics.values, details, hardware=run.config.hardware.name))
    for table in answer_tables(details):
        run.console.table(table)
    if rows:
        run.console.table(comparison_table(rows))
    # What a trace assumes stands in the first table already.
    for text in [*judge.history.notes, *set_aside_notes(judge.calibrated())]:
        run.console.line(f"  {text}")
    artifacts = {}
    if "grid" in details:
        run.console.table(grid_table(details["grid"]))
        atomic.write_text(run.run_dir.estimate_csv, _csv(details["grid"]["points"]))
        artifacts["grid"] = run.run_dir.estimate_csv.name
    if fit.fits:
        return StageResult("ok", metrics, details, artifacts)
    summary = (
        f"estimated {format_bytes(fit.needed_bytes)} on {run.config.hardware.name}, of which "
        f"{format_bytes(fit.allowed_bytes)} may be used: {format_bytes(run.config.hardware.memory_bytes)} less a "
        f"headroom of {run.config.estimate.headroom:.0%}"
    )
    return StageResult("does_not_fit", metrics, details, artifacts, Failure(summary, cause=_where(details)))


def _traced(run: Run, *, limit_bytes: float) -> Outcome:
    """What the worker finds; of a sweep's points, the first one's finds it for all that one trace serves."""
    asked: dict[str, Any] = {"measured": [], "limit_bytes": limit_bytes, "shapes": []}
    sweep_dir = run.sweep_dir
    if sweep_dir is None or _asks_for_more(run.config.estimate):
        atomic.write_json(run.run_dir.asked, asked)
        return run.work("estimate", computes=False)
    own, digest = (run.config.train.micro_batch_size, run.config.train.seq_len), traced_digest(run.config)
    found = shared_traces.read_found(sweep_dir, digest, own)
    if found is not None:
        run.console.line(f"  estimate: found in {found['run_id']}, with its own shape")
        return Outcome("ok", 0.0, result=found["result"])
    shapes = shared_traces.read_shapes(sweep_dir, digest)
    atomic.write_json(run.run_dir.asked, {**asked, "shapes": [shape for shape in shapes if shape != own]})
    outcome = run.work("estimate", computes=False)
    if not shapes or outcome.status != "ok" or outcome.result["details"].get("method") == ANALYTIC:
        return outcome
    others = outcome.result.pop("shapes", [])
    results = {(other["micro_batch_size"], other["seq_len"]): other["result"] for other in others}
    for shape, result in {**results, own: outcome.result}.items():
        shared_traces.write_found(sweep_dir, digest, shape, {"run_id": run.run_dir.path.name, "result": result})
    return outcome


def _asks_for_more(options: EstimateOptions) -> bool:
    """A grid, a limit, other numbers of devices: no other point has asked the same."""
    grid = options.micro_batch_sizes or options.seq_lens
    return bool(grid or options.largest_micro_batch or options.longest_sequence or options.max_devices is not None)


def _own_shape(run: Run, judge: Judge, result: Mapping[str, Any]) -> tuple[Metrics, dict[str, Any], Fit]:
    found: dict[str, float] = dict(result["metrics"])
    hardware, world_size = run.config.hardware, run.arithmetic.world_size
    fit = judge.fit(result, num_devices=world_size)
    calibration = judge.calibration()
    # The processor has no caching allocator: there, what is allocated is what is used.
    if hardware.device_type == "cpu":
        del found["native_reserved_bytes"], found["expandable_reserved_bytes"]
    else:
        found["peak_reserved_bytes"] = calibration.reserved(found[f"{run.config.estimate.allocator}_reserved_bytes"])
    if calibration.memory is not None:
        found["traced_peak_allocated_bytes"] = found["peak_allocated_bytes"]
        found["peak_allocated_bytes"] = calibration.allocated(found["peak_allocated_bytes"])
        found["device_used_low_bytes"] = fit.needed_bytes / (1 + calibration.memory.band)
        found["device_used_high_bytes"] = fit.needed_bytes * (1 + calibration.memory.band)
    overhead = overhead_for(run, num_devices=world_size)
    metrics = Metrics()
    metrics.add("estimated", found)
    metrics.add(
        "estimated",
        overhead_bytes=calibration.overhead(overhead.num_bytes),
        device_used_bytes=fit.needed_bytes,
    )
    metrics.add("given", memory_limit_bytes=hardware.memory_bytes, world_size=world_size)
    time = judge.time(result, num_devices=world_size)
    warnings = [*judge.history.notes, *set_aside_notes(judge.calibrated()), *result["details"]["notes"]]
    if isinstance(time, StepTime):
        _add_time(run, judge, metrics, time)
    else:
        warnings.append(f"no step time: {time}")
    analytic = result["details"].get("method") == ANALYTIC
    details: dict[str, Any] = {
        "step_parts": time.parts if isinstance(time, StepTime) else {},
        **{name: value for name, value in result["details"].items() if name != "notes"},
        "overhead": [
            {**line, "num_bytes": calibration.overhead(int(str(line["num_bytes"])))} for line in overhead.lines
        ],
        "fits": fit.fits,
        "calibration": ", ".join([*([ANALYTIC] if analytic else []), calibration.words(calibration.time)]),
        "memory_calibration": calibration.words(calibration.memory),
        "step_band": calibration.time.band if calibration.time is not None else None,
        "threads": run.threads,
        "warnings": warnings,
    }
    return metrics, details, fit


def _add_time(run: Run, judge: Judge, metrics: Metrics, time: StepTime) -> None:
    """The step and what follows from it. The band is that of the correction; uncalibrated, that of the overlap."""
    correction = judge.calibration().time
    low, high = time.low_seconds, time.high_seconds
    if correction is not None:
        low, high = time.step_seconds / (1 + correction.band), time.step_seconds * (1 + correction.band)
    peak = run.config.hardware.peak_flops.get(run.config.precision.flops_format)
    tokens = run.arithmetic.tokens_per_step / time.step_seconds
    metrics.add(
        "estimated",
        step_seconds=time.step_seconds,
        step_low_seconds=low,
        step_high_seconds=high,
        tokens_per_second=tokens,
        tokens_per_second_per_device=tokens / run.arithmetic.world_size,
        hardware_flops_utilization=time.num_flops / time.step_seconds / peak if peak else None,
    )


def _judged_grid(judge: Judge, grid: Mapping[str, Any]) -> dict[str, Any]:
    """Each point against the device, and for each sequence length the largest micro-batch of the grid that fits."""
    points = []
    for point in grid["points"]:
        fit = judge.fit({"metrics": point}, num_devices=judge.run.arithmetic.world_size)
        points.append({**point, "needed_bytes": fit.needed_bytes, "fits": fit.fits})
    largest = {
        str(seq_len): max(
            (point["micro_batch_size"] for point in points if point["fits"] and point["seq_len"] == seq_len), default=0
        )
        for seq_len in sorted({point["seq_len"] for point in points})
    }
    return {"points": points, "how": grid["how"], "largest_micro_batch": largest}


def _csv(points: list[dict[str, Any]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(points[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(points)
    return stream.getvalue()


def _where(details: Mapping[str, Any]) -> str:
    peak = max(details["peaks"], key=lambda item: int(item["peak_bytes"]))
    return f"the peak stands in the {peak['step']}: {peak['where']}"


def _explained(run: Run, outcome: Outcome) -> StageResult:
    """A model that cannot be traced is refused, with what to do; a worker that died is a failure like any other."""
    errors = run.run_dir.phase("estimate").errors()
    if errors and errors[0].get("type") == "EstimateError":
        raise StageRefused(str(errors[0]["summary"]))
    return not_ok(run, outcome)
