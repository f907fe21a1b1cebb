"""Phase `measure`: representative steps of the intended run on one device, then their memory.

Time first and memory after: counting live tensors slows a step down, so no counted step carries the counter.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict
from typing import Any

from pilotkit.meter.device_memory import refuse_busy_device, split_device_memory
from pilotkit.meter.device_use import own_pid, read_device_use
from pilotkit.meter.flops import count_executed_flops, count_training_flops, mfu
from pilotkit.meter.memory import LiveTensorTracker
from pilotkit.meter.rss import peak_rss_bytes
from pilotkit.meter.statistics import median_interval, percentile, summarize
from pilotkit.worker.build import Built, build
from pilotkit.worker.loader import loader_rate
from pilotkit.worker.memory import measure_phases
from pilotkit.worker.session import Session
from pilotkit.worker.steps import TimedSteps, run_timed_steps

NUM_EVAL_BATCHES = 2


def measure(session: Session) -> dict[str, Any]:
    """Warm up, run the counted steps, time two evaluation batches, then look at memory phase by phase."""
    options, train = session.config.measure, session.config.train
    refuse_other_tenants(session)
    built = build(session, strategy="single", longest_rows=True)
    session.device.reset_peak()
    steps = run_timed_steps(
        session,
        built,
        num_warmup_steps=options.num_warmup_steps,
        max_warmup_steps=options.max_warmup_steps,
        num_measured_steps=options.num_measured_steps,
        label="measure",
    )
    metrics = {
        **time_metrics(steps, tokens_per_step=_tokens_per_step(session), world_size=1),
        **memory_metrics(session, built),
        "num_params": built.num_params,
        "batch_bytes": built.batch_bytes,
        "model_load_seconds": built.model_load_seconds,
        "data_open_seconds": built.data_open_seconds,
        "eval_batch_seconds": _time_evaluation(session, built),
        "first_loss": steps.first.loss,
        "last_loss": steps.last.loss,
    }
    metrics.update(_flops_metrics(session, built, tokens_per_second=metrics["tokens_per_second"]))
    if built.lengths is not None:
        metrics.update(built.lengths.metrics())
    batches_per_second = loader_rate(session, built.trainer.train_rows)
    metrics["loader_batches_per_second"] = batches_per_second
    metrics["loader_tokens_per_second"] = batches_per_second * train.micro_batch_size * train.seq_len
    peaks, memory = measure_phases(session, built)
    metrics.update(peaks)
    built.close()
    return {
        "metrics": metrics,
        "steps": steps.step_seconds,
        "device": session.device.name,
        "memory": memory,
        "time": time_details(steps),
    }


def refuse_other_tenants(session: Session) -> None:
    """Before anything is built. Raises DeviceBusy when an accelerator is not empty."""
    used = session.device.memory().device_used_bytes
    if used is not None:
        allowed = session.config.measure.max_used_before_bytes
        use = read_device_use(session.device) if used > allowed else None
        users = use.describe() if use else ""
        refuse_busy_device(session.device.name, used_bytes=used, allowed_bytes=allowed, users=users)


def time_metrics(steps: TimedSteps, *, tokens_per_step: int, world_size: int) -> dict[str, float]:
    """Step time and what follows from it. `tokens_per_step` counts all ranks.

    Sections are means, so that with `other_seconds` they add up to `step_mean_seconds`.
    """
    step = summarize(steps.step_seconds)
    interval = median_interval(steps.step_seconds)
    tokens_per_second = tokens_per_step / step.median
    metrics = {
        "num_warmup_steps": len(steps.warmup_seconds),
        "num_measured_steps": step.n,
        "first_step_seconds": (steps.warmup_seconds or steps.step_seconds)[0],
        "warmup_seconds": sum(steps.warmup_seconds),
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
    if interval is not None:
        metrics["step_ci_low_seconds"], metrics["step_ci_high_seconds"] = interval
    means = {name: statistics.fmean(seconds) for name, seconds in steps.section_seconds.items()}
    metrics.update({f"{name}_seconds": mean for name, mean in means.items()})
    metrics["other_seconds"] = step.mean - sum(means.values())
    metrics.update(_wait_metrics(steps))
    if steps.warmup_compilations or steps.counted_compilations:
        metrics["compile_seconds"] = sum(found.seconds for found in steps.warmup_compilations)
        metrics["recompile_seconds"] = sum(found.seconds for found in steps.counted_compilations)
        metrics["num_recompilations"] = len(steps.counted_compilations)
    return metrics


def time_details(steps: TimedSteps) -> dict[str, Any]:
    """What stands beside the step time: whether it settled, and what was compiled again and why."""
    return {
        "settled": steps.settled,
        "compilations": [asdict(found) for found in steps.warmup_compilations],
        "recompilations": [asdict(found) for found in steps.counted_compilations],
        "compile_limits": steps.compile_limits,
    }


def _wait_metrics(steps: TimedSteps) -> dict[str, float]:
    """Time in which a step had no batch: on average hidden, now and then not."""
    waits = steps.section_seconds.get("data_wait")
    if not waits:
        return {}
    at_epochs = [wait for wait, starts in zip(waits, steps.epoch_starts, strict=True) if starts]
    metrics = {
        "data_wait_p50_seconds": percentile(waits, 50),
        "data_wait_p95_seconds": percentile(waits, 95),
        "data_wait_p99_seconds": percentile(waits, 99),
        "data_wait_share": sum(waits) / sum(steps.step_seconds),
    }
    if at_epochs:
        metrics["data_wait_epoch_start_seconds"] = statistics.fmean(at_epochs)
    return metrics


def memory_metrics(session: Session, built: Built) -> dict[str, float]:
    """Peaks of a step in the steady state, when the optimizer's state is there. On the CPU: live tensors and RSS."""
    reading = session.device.memory()
    if reading.peak_allocated_bytes is not None:
        use = read_device_use(session.device)
        others = use.others_bytes(own_pid=own_pid()) if use else None
        used = use.used_bytes if use else reading.device_used_bytes
        on_device = {
            "peak_allocated_bytes": reading.peak_allocated_bytes,
            "peak_reserved_bytes": reading.peak_reserved_bytes,
            "device_used_bytes": used,
            "others_used_bytes": others,
            "num_alloc_retries": reading.num_alloc_retries,
            "memory_limit_bytes": reading.device_total_bytes,
        }
        if reading.peak_reserved_bytes is not None and used is not None:
            between = split_device_memory(
                allocated=reading.peak_allocated_bytes,
                reserved=reading.peak_reserved_bytes,
                used=used,
                # What came later; a device that was not empty at the start has been refused.
                used_before=others or 0,
            )
            on_device.update(
                device_own_bytes=between.own_bytes,
                caching_bytes=between.caching_bytes,
                runtime_overhead_bytes=between.overhead_bytes,
            )
        return {name: float(value) for name, value in on_device.items() if value is not None}
    tracker = LiveTensorTracker()
    tracker.track(built.trainer.model, built.trainer.optimizer)
    with tracker:
        built.trainer.train_step()
    on_cpu = {
        "peak_allocated_bytes": tracker.peak_bytes,
        "peak_rss_bytes": peak_rss_bytes(),
        "memory_limit_bytes": session.config.hardware.memory_bytes,
    }
    return {name: float(value) for name, value in on_cpu.items() if value is not None}


def _tokens_per_step(session: Session) -> int:
    train = session.config.train
    return train.micro_batch_size * train.seq_len * session.arithmetic.grad_accum_steps


def _time_evaluation(session: Session, built: Built) -> float:
    num_batches = min(NUM_EVAL_BATCHES, session.config.train.num_eval_batches)
    started = time.perf_counter()
    built.trainer.evaluate(num_batches)
    session.device.synchronize()
    return (time.perf_counter() - started) / num_batches


def _flops_metrics(session: Session, built: Built, *, tokens_per_second: float) -> dict[str, float]:
    """What the model needs and what the device does, a token and of its peak; they differ by what is recomputed.

    A row of a model that is not fed tokens counts as `train.seq_len` of them.
    """
    train, hardware = session.config.train, session.config.hardware
    batch = built.trainer.train_rows.next().tensors
    tensors = {name: tensor.to(session.device.torch_device) for name, tensor in batch.items()}
    needed = count_training_flops(lambda: built.trainer.model(**tensors).loss)
    executed = count_executed_flops(built.trainer.train_step)
    metrics = {
        "num_flops_per_token": needed / (train.micro_batch_size * train.seq_len),
        "num_executed_flops_per_token": executed / _tokens_per_step(session),
    }
    peak_flops = hardware.peak_flops.get(session.config.precision.flops_format)
    if peak_flops and needed:
        metrics["mfu"] = mfu(tokens_per_second, metrics["num_flops_per_token"], peak_flops)
        metrics["hfu"] = mfu(tokens_per_second, metrics["num_executed_flops_per_token"], peak_flops)
    return metrics
