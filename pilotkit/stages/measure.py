"""Stage `measure`: what does a representative step really cost on one device?"""

from __future__ import annotations

from typing import Any

from pilotkit.stages.numbers import as_metrics, step_warnings
from pilotkit.stages.run import Run, StageResult, not_ok
from pilotkit.units import format_bytes

# A peak that is larger by less than this is the same one.
WORTH_TELLING = 1.01


def run(run: Run) -> StageResult:
    """Warm up, count steps, count memory; a run that does not fit is a result like any other."""
    devices = run.devices()
    outcome = run.work("measure")
    if outcome.status != "ok":
        return not_ok(run, outcome)
    found = outcome.result["metrics"]
    memory = outcome.result["memory"]
    timing = outcome.result["time"]
    warnings = [
        *step_warnings(found, max_spread=run.config.measure.max_spread, time=timing),
        *_loader_warnings(run, found),
        *_memory_warnings(found, memory),
    ]
    for warning in warnings:
        run.console.line(f"  note: {warning}")
    return StageResult(
        metrics=as_metrics(found),
        details={
            "warnings": warnings,
            "steps": outcome.result["steps"],
            "device": {"name": outcome.result["device"], "visible": devices.visible},
            "threads": run.threads,
            "memory": memory,
            "time": timing,
        },
    )


def _loader_warnings(run: Run, found: dict[str, float]) -> list[str]:
    """A loader that is slower than the steps without their waits would make them wait in the long run, too."""
    needed = run.arithmetic.grad_accum_steps / max(found["step_mean_seconds"] - found["data_wait_seconds"], 1e-9)
    rate = found["loader_batches_per_second"]
    if rate >= needed:
        return []
    return [
        f"the loader delivers at most {rate:.3g} batches a second and training could take {needed:.3g}: "
        f"{100 * found['data_wait_share']:.0f} % of a step is spent waiting for data; raise data.num_workers"
    ]


def _memory_warnings(found: dict[str, float], memory: dict[str, Any]) -> list[str]:
    """Training that fits is not a run that fits: evaluation or a save may need more than a step does."""
    warnings = []
    decides = memory["deciding_phase"] != "steps"
    if decides and found["largest_peak_bytes"] > WORTH_TELLING * found["peak_allocated_bytes"]:
        peak, steps = format_bytes(found["largest_peak_bytes"]), format_bytes(found["peak_allocated_bytes"])
        warnings.append(f"{memory['deciding_phase']} needs more memory than a later step: {peak}, and {steps} in steps")
    if memory["eval_grows"]:
        growth = format_bytes(found["eval_growth_bytes"])
        warnings.append(f"the memory of evaluation grows by {growth} with every batch: something keeps its results")
    return warnings
