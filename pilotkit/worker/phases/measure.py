"""Phase `measure`: representative steps of the intended run on one device, then their memory.

Time first and memory after: counting live tensors slows a step down, so no counted step carries the counter.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from pilotkit.meter.device_memory import refuse_busy_device, split_device_memory
from pilotkit.meter.flops import count_training_flops, mfu
from pilotkit.meter.memory import LiveTensorTracker
from pilotkit.meter.rss import peak_rss_bytes
from pilotkit.meter.statistics import summarize
from pilotkit.worker.build import Built, build
from pilotkit.worker.memory import measure_phases
from pilotkit.worker.session import Session
from pilotkit.worker.steps import TimedSteps, run_timed_steps

NUM_EVAL_BATCHES = 2


def measure(session: Session) -> dict[str, Any]:
    """Warm up, run the counted steps, time two evaluation batches, then look at memory phase by phase."""
    options = session.config.measure
    refuse_other_tenants(session)
    built = build(session, strategy="single")
    session.device.reset_peak()
    steps = run_timed_steps(
        session,
        built,
        num_warmup_steps=options.num_warmup_steps,
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
    num_flops_per_token = _flops_per_token(session, built)
    metrics["num_flops_per_token"] = num_flops_per_token
    peak_flops = session.config.hardware.peak_flops.get(session.config.precision.flops_format)
    if peak_flops and num_flops_per_token:
        metrics["mfu"] = mfu(metrics["tokens_per_second"], num_flops_per_token, peak_flops)
    peaks, memory = measure_phases(session, built)
    metrics.update(peaks)
    built.close()
    return {"metrics": metrics, "steps": steps.step_seconds, "device": session.device.name, "memory": memory}


def refuse_other_tenants(session: Session) -> None:
    """Before anything is built. Raises DeviceBusy when an accelerator is not empty."""
    used = session.device.memory().device_used_bytes
    if used is not None:
        allowed = session.config.measure.max_used_before_bytes
        refuse_busy_device(session.device.name, used_bytes=used, allowed_bytes=allowed)


def time_metrics(steps: TimedSteps, *, tokens_per_step: int, world_size: int) -> dict[str, float]:
    """Step time and what follows from it. `tokens_per_step` counts all ranks; sections are the median of a step."""
    step = summarize(steps.step_seconds)
    tokens_per_second = tokens_per_step / step.median
    metrics = {
        "num_warmup_steps": len(steps.warmup_seconds),
        "num_measured_steps": step.n,
        "first_step_seconds": (steps.warmup_seconds or steps.step_seconds)[0],
        "warmup_seconds": sum(steps.warmup_seconds),
        "step_seconds": step.median,
        "step_p95_seconds": step.p95,
        "step_min_seconds": step.minimum,
        "step_max_seconds": step.maximum,
        "step_stddev_seconds": step.stddev,
        "step_spread": step.spread,
        "tokens_per_step": tokens_per_step,
        "tokens_per_second": tokens_per_second,
        "tokens_per_second_per_device": tokens_per_second / world_size,
    }
    for name, seconds in steps.section_seconds.items():
        metrics[f"{name}_seconds"] = statistics.median(seconds)
    if "data_wait" in steps.section_seconds:
        metrics["data_wait_p95_seconds"] = summarize(steps.section_seconds["data_wait"]).p95
    return metrics


def memory_metrics(session: Session, built: Built) -> dict[str, float]:
    """Peaks of a step in the steady state, when the optimizer's state is there. On the CPU: live tensors and RSS."""
    reading = session.device.memory()
    if reading.peak_allocated_bytes is not None:
        on_device = {
            "peak_allocated_bytes": reading.peak_allocated_bytes,
            "peak_reserved_bytes": reading.peak_reserved_bytes,
            "device_used_bytes": reading.device_used_bytes,
            "num_alloc_retries": reading.num_alloc_retries,
            "memory_limit_bytes": reading.device_total_bytes,
        }
        if reading.peak_reserved_bytes is not None and reading.device_used_bytes is not None:
            between = split_device_memory(
                allocated=reading.peak_allocated_bytes,
                reserved=reading.peak_reserved_bytes,
                used=reading.device_used_bytes,
                used_before=0,  # a device that was not empty has been refused
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


def _flops_per_token(session: Session, built: Built) -> float:
    """Counted over one micro-batch; for a model that is not fed tokens, one row counts `train.seq_len` of them."""
    train = session.config.train
    batch = built.trainer.train_rows.next().tensors
    tensors = {name: tensor.to(session.device.torch_device) for name, tensor in batch.items()}
    flops = count_training_flops(lambda: built.trainer.model(**tensors).loss)
    return flops / (train.micro_batch_size * train.seq_len)
