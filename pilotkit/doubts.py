"""What stands beside a step time that should not be taken at face value: the words of stages and of StepMeter's file.

Called by the driver with a worker's figures and by `pilotkit.meter` with its own, so that both say the same. Reads
figures, measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pilotkit.units import format_seconds

MIN_STEPS = 5
MAX_SPREAD = 0.1
"""Standard deviation over mean; StepMeter's, and the default of `measure.max_spread`."""
MAX_BETWEEN = 0.05
"""Time between two steps, over that of a step, that is still nobody's business."""


def step_doubts(found: Mapping[str, float], *, max_spread: float, time: Mapping[str, Any]) -> list[str]:
    """One sentence each, empty where all is well. `time`: whether it settled, and what was compiled again."""
    doubts = _compile_doubts(found, time)
    if not time["settled"]:
        doubts.append(f"steps were still becoming faster after {found['num_warmup_steps']:.0f} warm-up steps")
    spread = found["step_spread"]
    if spread > max_spread:
        doubts.append(
            f"the step time is unsteady: its spread is {spread * 100:.1f} %, over the limit of {max_spread * 100:.1f} %"
        )
    if found["num_measured_steps"] < MIN_STEPS:
        doubts.append(f"only {found['num_measured_steps']:.0f} steps were counted")
    if found.get("num_skipped_steps"):
        doubts.append(
            f"the loss scaler skipped {found['num_skipped_steps']:.0f} of {found['num_measured_steps']:.0f} counted "
            "steps for an overflow: their optimizer did nothing"
        )
    if found.get("num_alloc_retries"):
        doubts.append(f"the allocator had to retry {found['num_alloc_retries']:.0f} times: memory was all but full")
    return doubts + _between_doubts(found) + _peak_doubts(found)


def _compile_doubts(found: Mapping[str, float], time: Mapping[str, Any]) -> list[str]:
    doubts = []
    again = time["recompilations"]
    if again:
        names = ", ".join(sorted({str(item["function"]) for item in again}))
        reason = next((f" ({item['reason']})" for item in again if item["reason"]), "")
        count = "1 compilation" if len(again) == 1 else f"{len(again)} compilations"
        doubts.append(
            f"{count} of {names} fell into the counted steps and took {format_seconds(found['recompile_seconds'])}"
            f"{reason}: these times are no steady state; give every batch one shape (pad to it, leave out a smaller "
            "last batch) and keep numbers that change out of modules"
        )
    by_length = time.get("length_compilations", ())
    if by_length:
        names = ", ".join(sorted({str(item["function"]) for item in by_length}))
        reason = next((f" ({item['reason']})" for item in by_length if item["reason"]), "")
        doubts.append(
            f"rows of other lengths had {names} compiled {len(by_length)} times again, in "
            f"{format_seconds(found['length_recompile_seconds'])}{reason}: the counted steps are of one length"
        )
    if time["compile_limits"]:
        names = ", ".join(time["compile_limits"])
        doubts.append(f"torch.compile reached its limit for {names}: new shapes run uncompiled from here on")
    return doubts


def _between_doubts(found: Mapping[str, float]) -> list[str]:
    """A loop that takes its batch before the step begins waits there for a slow loader, and no step shows it."""
    between = found.get("between_steps_seconds", 0.0)
    if not between or between <= MAX_BETWEEN * found["step_mean_seconds"]:
        return []
    return [
        f"between two steps pass {format_seconds(between)} (mean), and a step takes "
        f"{format_seconds(found['step_mean_seconds'])}: what waits there, the loader perhaps, is in no figure of a "
        'step; take the batch inside step(), as section("data_wait")'
    ]


def _peak_doubts(found: Mapping[str, float]) -> list[str]:
    for name in ("mfu", "hfu"):
        if found.get(name, 0.0) > 1.0:
            return [
                f"{name} is {found[name]:.3g}, and no device does more than its peak: either hardware.peak_flops is "
                "not this device's, or the steps ended before their work did"
            ]
    return []


def unreached_doubts(unreached: Mapping[str, Any] | None) -> list[str]:
    """`unreached`: `num_steps`, and in how many of them a parameter that wants a gradient got none, by name. None of a
    worker that did not look."""
    if unreached is None:
        return []
    counts: Mapping[str, int] = unreached["parameters"]
    total = unreached["num_steps"]
    never = [name for name, count in counts.items() if count == total]
    at_times = [name for name, count in counts.items() if count < total]
    doubts = []
    if never:
        doubts.append(
            f"no gradient reached {_shown(never)} in any of {total} steps: nothing trains them; freeze them "
            "(requires_grad=False) if that is meant, else look for what cuts them off (detach, no_grad, argmax, whole "
            "numbers). DDP refuses them"
        )
    if at_times:
        most = max(counts[name] for name in at_times)
        doubts.append(
            f"no gradient reached {_shown(at_times)} in up to {most} of {total} steps: DDP, FSDP and HSDP need "
            "parallelism.find_unused_parameters=true for that"
        )
    return doubts


def _shown(names: list[str], *, most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(sorted(names)[:most]) + more
