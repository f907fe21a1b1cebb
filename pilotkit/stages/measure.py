"""Stage `measure`: what does a representative step really cost on one device?"""

from __future__ import annotations

from typing import Any

from pilotkit.doubts import step_doubts, unreached_doubts
from pilotkit.stages.numbers import as_metrics
from pilotkit.stages.run import Run, StageResult, not_ok
from pilotkit.units import format_bytes, format_seconds

# A peak that is larger by less than this is the same one.
WORTH_TELLING = 1.01
# Share of a step without a batch.
WORTH_A_WARNING = 0.1


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
        *outcome.result.get("overridden", []),
        *step_doubts(found, max_spread=run.config.measure.max_spread, time=timing),
        *unreached_doubts(outcome.result.get("unreached")),
        *_loader_warnings(run, found),
        *_length_warnings(run, found),
        *_shape_warnings(run, rows_differ=outcome.result.get("rows_differ", False)),
        *_memory_warnings(found, memory, num_eval_batches=run.config.train.num_eval_batches),
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
        return _stall_warnings(found)
    return [
        f"the loader delivers at most {rate:.3g} batches a second and training could take {needed:.3g}: "
        f"{100 * found['data_wait_share']:.0f} % of a step is spent waiting for data; raise data.num_workers"
    ]


def _stall_warnings(found: dict[str, float]) -> list[str]:
    """A loader that is fast enough on average, and comes late all the same: in bursts, or for want of a core."""
    if found.get("data_wait_share", 0.0) <= WORTH_A_WARNING:
        return []
    return [
        f"{100 * found['data_wait_share']:.0f} % of a step is spent waiting for data, though the loader delivers "
        f"{found['loader_batches_per_second']:.3g} batches a second by itself (a wait is {_seconds(found, 'p50')} at "
        f"the median, {_seconds(found, 'p99')} at the 99th percentile): raise data.num_workers or data.prefetch_factor"
    ]


def _seconds(found: dict[str, float], percentile: str) -> str:
    return format_seconds(found[f"data_wait_{percentile}_seconds"])


def _length_warnings(run: Run, found: dict[str, float]) -> list[str]:
    """Where rows are shorter than `train.seq_len`, tokens a second are more than the run will see of its data."""
    share = found.get("full_rows_share", 1.0)
    if share == 1.0:
        return []
    looked, in_all, seq_len = found["num_rows_looked_at"], found["num_rows"], run.config.train.seq_len
    rows = f"{looked:.0f} rows" if looked == in_all else f"{looked:.0f} rows looked at (of {in_all:.0f})"
    text = (
        f"{100 * share:.3g} % of {rows} reach train.seq_len = {seq_len} (mean "
        f"{found['mean_row_tokens']:.4g} tokens, longest {found['longest_row_tokens']:.0f}): "
        "tokens per second count the padding up to it"
    )
    if share:
        return [text]
    if looked == in_all:
        return [f"{text}; no row is that long, lower train.seq_len or look at the data"]
    return [
        f"{text}; none of these is that long, and the memory of a longer one was not measured: give the look more time "
        "(measure.loader_seconds), or lower train.seq_len if there is none"
    ]


def _shape_warnings(run: Run, *, rows_differ: bool) -> list[str]:
    """Steps are taken on the longest rows, so no change of shape falls into them; in the long run it will."""
    if not (rows_differ and run.config.train.compile):
        return []
    return [
        "the rows differ in length and train.compile is on: each new length may compile again, and steps were taken on "
        "the longest alone; pad rows to train.seq_len, or see what a few steps of other lengths "
        "compiled (num_length_recompilations)"
    ]


def _memory_warnings(found: dict[str, float], memory: dict[str, Any], *, num_eval_batches: int) -> list[str]:
    """Training that fits is not a run that fits: evaluation or a save may need more than a step does."""
    warnings = []
    decides = memory["deciding_phase"] != "steps"
    if decides and found["largest_peak_bytes"] > WORTH_TELLING * found["peak_allocated_bytes"]:
        peak, steps = format_bytes(found["largest_peak_bytes"]), format_bytes(found["peak_allocated_bytes"])
        warnings.append(f"{memory['deciding_phase']} needs more memory than a later step: {peak}, and {steps} in steps")
    if memory["eval_grows"]:
        growth = found["eval_growth_bytes"]
        whole = found["evaluation_peak_bytes"] + growth * num_eval_batches
        warnings.append(
            f"the memory of evaluation grows by {format_bytes(growth)} with every batch: something keeps its results; "
            f"with the {num_eval_batches} of train.num_eval_batches it comes to {format_bytes(whole)} (projected)"
        )
    settings = memory.get("allocator_settings", "")
    if "max_split_size_mb" in settings and "expandable_segments:True" in settings:
        warnings.append(
            f"the allocator was started with {settings}: max_split_size_mb is made for segments that do not expand, "
            "and both together have let reserved memory grow; drop max_split_size_mb"
        )
    return warnings
