"""Stage `measure`: what does a representative step really cost on one device?"""

from __future__ import annotations

from pilotkit.stages.numbers import as_metrics, step_warnings
from pilotkit.stages.run import Run, StageResult, not_ok


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
