"""What stages that time steps make of the worker's numbers: origins, and the words that stand beside a doubtful one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pilotkit.records.record import Metrics
from pilotkit.units import format_seconds

# Not measured in any sense: settings, and sizes that follow from the configuration.
GIVEN = ("num_warmup_steps", "num_measured_steps", "tokens_per_step", "memory_limit_bytes")


def as_metrics(found: Mapping[str, float], *, prefix: str = "") -> Metrics:
    """Worker's numbers with their origins."""
    metrics = Metrics()
    given = {name: value for name, value in found.items() if name in GIVEN}
    metrics.add("given", {f"{prefix}{name}": value for name, value in given.items()})
    metrics.add("measured", {f"{prefix}{name}": value for name, value in found.items() if name not in GIVEN})
    return metrics


def step_warnings(found: Mapping[str, float], *, max_spread: float, time: Mapping[str, Any]) -> list[str]:
    """What stands beside a step time that should not be taken at face value. `time`: the worker's `time_details`."""
    warnings = _compile_warnings(found, time)
    if not time["settled"]:
        warnings.append(f"steps were still becoming faster after {found['num_warmup_steps']:.0f} warm-up steps")
    spread = found["step_spread"]
    if spread > max_spread:
        warnings.append(
            f"the step time is unsteady: its spread is {spread * 100:.1f} %, over the limit of {max_spread * 100:.1f} %"
        )
    if found["num_measured_steps"] < 5:
        warnings.append(f"only {found['num_measured_steps']:.0f} steps were counted")
    if found.get("num_skipped_steps"):
        warnings.append(
            f"the loss scaler skipped {found['num_skipped_steps']:.0f} of {found['num_measured_steps']:.0f} counted "
            "steps for an overflow: their optimizer did nothing"
        )
    if found.get("num_alloc_retries"):
        warnings.append(f"the allocator had to retry {found['num_alloc_retries']:.0f} times: memory was all but full")
    return warnings


def _compile_warnings(found: Mapping[str, float], time: Mapping[str, Any]) -> list[str]:
    warnings = []
    again = time["recompilations"]
    if again:
        names = ", ".join(sorted({str(item["function"]) for item in again}))
        reason = next((f" ({item['reason']})" for item in again if item["reason"]), "")
        warnings.append(
            f"{len(again)} compilations of {names} fell into the counted steps and took "
            f"{format_seconds(found['recompile_seconds'])}{reason}: these times are no steady state"
        )
    by_length = time.get("length_compilations", ())
    if by_length:
        names = ", ".join(sorted({str(item["function"]) for item in by_length}))
        reason = next((f" ({item['reason']})" for item in by_length if item["reason"]), "")
        warnings.append(
            f"rows of other lengths had {names} compiled {len(by_length)} times again, in "
            f"{format_seconds(found['length_recompile_seconds'])}{reason}: the counted steps are of one length"
        )
    if time["compile_limits"]:
        names = ", ".join(time["compile_limits"])
        warnings.append(f"torch.compile reached its limit for {names}: new shapes run uncompiled from here on")
    return warnings
