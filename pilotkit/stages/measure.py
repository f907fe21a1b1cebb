"""Stage `measure`: what does a representative step really cost on one device?"""

from __future__ import annotations

from typing import Any

from pilotkit.records.record import Metrics
from pilotkit.stages.run import Run, StageResult, not_ok

# Not measured in any sense: settings, and sizes that follow from the configuration.
GIVEN = ("num_warmup_steps", "num_measured_steps", "tokens_per_step", "memory_limit_bytes")


def run(run: Run) -> StageResult:
    """Warm up, count steps, count memory; a run that does not fit is a result like any other."""
    devices = run.devices()
    outcome = run.work("measure")
    if outcome.status != "ok":
        return not_ok(run, outcome)
    found = outcome.result["metrics"]
    warnings = step_warnings(found, max_spread=run.config.measure.max_spread)
    for warning in warnings:
        run.console.line(f"  note: {warning}")
    return StageResult(
        metrics=as_metrics(found),
        details={
            "warnings": warnings,
            "steps": outcome.result["steps"],
            "device": {"name": outcome.result["device"], "visible": devices.visible},
            "threads": run.threads,
        },
    )


def as_metrics(found: dict[str, float], *, prefix: str = "") -> Metrics:
    """Worker's numbers with their origins."""
    metrics = Metrics()
    given = {name: value for name, value in found.items() if name in GIVEN}
    metrics.add("given", {f"{prefix}{name}": value for name, value in given.items()})
    metrics.add("measured", {f"{prefix}{name}": value for name, value in found.items() if name not in GIVEN})
    return metrics


def step_warnings(found: dict[str, Any], *, max_spread: float) -> list[str]:
    """What stands beside a step time that should not be taken at face value."""
    warnings = []
    spread = found["step_spread"]
    if spread > max_spread:
        warnings.append(f"the step time is unsteady: its spread is {spread:.1%}, over the limit of {max_spread:.1%}")
    if found["num_measured_steps"] < 5:
        warnings.append(f"only {found['num_measured_steps']:.0f} steps were counted")
    if found.get("num_alloc_retries"):
        warnings.append(f"the allocator had to retry {found['num_alloc_retries']:.0f} times: memory was all but full")
    return warnings
