"""What a list of step times becomes in a record: one arithmetic for `measure`, `pilot` and StepMeter.

Called once the steps are taken. Drops no value: which steps are warm-up is the caller's to say, or `find_warmup`'s.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from pilotkit.meter.statistics import is_settled, median_interval, percentile, summarize

WINDOW = 3
TOLERANCE = 0.1
MIN_COUNTED = 5


def step_metrics(
    *,
    warmup_seconds: Sequence[float],
    step_seconds: Sequence[float],
    section_seconds: Mapping[str, Sequence[float]],
    tokens_per_step: int,
    world_size: int,
    other_seconds: float | None = None,
) -> dict[str, float]:
    """Flat metrics, unit in the suffix.

    `step_seconds` are the counted steps, one or more; `section_seconds` is of these. `tokens_per_step` is of all ranks.
    Sections are means, so that with `other_seconds` they add up to `step_mean_seconds`; where sections lie inside each
    other the caller has to say what lies outside all of them.
    """
    step = summarize(step_seconds)
    tokens_per_second = tokens_per_step / step.median
    metrics = {
        "num_warmup_steps": len(warmup_seconds),
        "num_measured_steps": step.n,
        "first_step_seconds": (warmup_seconds or step_seconds)[0],
        "warmup_seconds": sum(warmup_seconds),
        "step_seconds": step.median,
        "step_mean_seconds": step.mean,
        "step_p95_seconds": step.p95,
        "step_min_seconds": step.minimum,
        "step_max_seconds": step.maximum,
        "step_stddev_seconds": step.stddev,
        "step_spread": step.spread,
        "tokens_per_step": tokens_per_step,
        "tokens_per_second": tokens_per_second,
        "tokens_per_second_per_device": tokens_per_second / world_size,
    }
    interval = median_interval(step_seconds)
    if interval is not None:
        metrics["step_ci_low_seconds"], metrics["step_ci_high_seconds"] = interval
    means = {name: statistics.fmean(seconds) for name, seconds in section_seconds.items()}
    metrics.update({f"{name}_seconds": mean for name, mean in means.items()})
    if means:
        metrics["other_seconds"] = step.mean - sum(means.values()) if other_seconds is None else other_seconds
    metrics.update(_wait_metrics(section_seconds.get("data_wait"), step_seconds))
    return metrics


def _wait_metrics(waits: Sequence[float] | None, step_seconds: Sequence[float]) -> dict[str, float]:
    """Time in which a step had no batch: on average hidden, now and then not."""
    if not waits:
        return {}
    return {
        "data_wait_p50_seconds": percentile(waits, 50),
        "data_wait_p95_seconds": percentile(waits, 95),
        "data_wait_p99_seconds": percentile(waits, 99),
        "data_wait_share": sum(waits) / sum(step_seconds),
    }


def find_warmup(seconds: Sequence[float]) -> int:
    """How many of these steps, looked at afterwards, were warm-up: until they were no longer becoming faster.

    As `is_settled` says it, with windows of WINDOW steps. Half of them where fewer than MIN_COUNTED would be left, or
    where they never settled: the caller tells of that.
    """
    for number in range(2 * WINDOW, len(seconds) - MIN_COUNTED + 1):
        if is_settled(seconds[:number], window=WINDOW, tolerance=TOLERANCE):
            return number
    return len(seconds) // 2
