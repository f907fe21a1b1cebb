"""Stage `measure`: what does a representative step really cost on one device?"""

from __future__ import annotations

from typing import Any

from pilotkit.doubts import step_doubts, unreached_doubts
from pilotkit.stages.numbers import as_metrics
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
        *outcome.result.get("overridden", []),
        *step_doubts(found, max_spread=run.config.measure.max_spread, time=timing),
        *unreached_doubts(outcome.result.get("unreached")),
        *_loader_warnings(run, found),
        *_length_warnings(run, found),
        *_shape_warnings(run, rows_differ=outcome.result.get("rows_differ", False)),
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


def _length_warnings(run: Run, found: dict[str, float]) -> list[str]:
    """Where rows are shorter than `train.seq_len`, tokens a second are more than the run will see of its data."""
    share = found.get("full_rows_share", 1.0)
    if share == 1.0:
        return []
    looked, seq_len = found["num_rows_looked_at"], run.config.train.seq_len
    text = (
        f"{100 * share:.3g} % of {looked:.0f} rows reach train.seq_len = {seq_len} (mean "
        f"{found['mean_row_tokens']:.4g} tokens, longest {found['longest_row_tokens']:.0f}): "
        "tokens per second count the padding up to it"
    )
    return [text if share else f"{text}; no row is that long, lower train.seq_len or look at the data"]


def _shape_warnings(run: Run, *, rows_differ: bool) -> list[str]:
    """Steps are taken on the longest rows, so no change of shape falls into them; in the long run it will."""
    if not (rows_differ and run.config.train.compile):
        return []
    return [
        "the rows differ in length and train.compile is on: each new length may compile again, and steps were taken on "
        "the longest alone; pad rows to train.seq_len, or see the price in stage=pilot, which takes them as they come"
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
    settings = memory.get("allocator_settings", "")
    if "max_split_size_mb" in settings and "expandable_segments:True" in settings:
        warnings.append(
            f"the allocator was started with {settings}: max_split_size_mb is made for segments that do not expand, "
            "and both together have let reserved memory grow; drop max_split_size_mb"
        )
    return warnings
