"""Phase `measure`: representative steps of the intended run on one device, then their memory.

Time first and memory after: counting live tensors slows a step down, so no counted step carries the counter.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict
from typing import Any

from torch import Tensor

from pilotkit.meter.compilation import at_limit, compile_metrics, length_metrics
from pilotkit.meter.device_memory import refuse_busy_device
from pilotkit.meter.device_use import device_memory_metrics, read_device_use
from pilotkit.meter.flops import count_executed_flops, count_training_flops, mfu
from pilotkit.meter.rss import peak_rss_bytes
from pilotkit.meter.step_times import step_metrics
from pilotkit.worker.build import Built, build
from pilotkit.worker.loader import loader_rate
from pilotkit.worker.memory import counted_peak, measure_phases
from pilotkit.worker.session import Session
from pilotkit.worker.steps import TimedSteps, compilations_as_rows_come, run_timed_steps

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
    on_device = device_memory_metrics(session.device)
    # Ahead of whatever counts operators: torch leaves a function uncompiled for good that it met under a counter.
    by_length = compilations_as_rows_come(built, num_steps=options.num_measured_steps) if train.compile else []
    metrics = {
        **time_metrics(steps, tokens_per_step=_tokens_per_step(session), world_size=1),
        **(on_device or _counted_memory(session, built)),
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
    after = device_memory_metrics(session.device)
    if "device_own_bytes" in after:
        # Segments stay with the allocator, so this holds the largest phase, evaluation and saving among them.
        metrics["largest_own_bytes"] = max(after["device_own_bytes"], metrics.get("device_own_bytes", 0.0))
    timing = time_details(steps)
    if train.compile:
        metrics.update(length_metrics(by_length))
        timing["length_compilations"] = [asdict(found) for found in by_length]
        timing["compile_limits"] = sorted({*timing["compile_limits"], *at_limit(by_length)})
    built.close()
    return {
        "metrics": metrics,
        "steps": steps.step_seconds,
        "device": session.device.name,
        "memory": memory,
        "time": timing,
        "unreached": built.trainer.unreached(),
        "overridden": list(built.overridden),
        "rows_differ": built.lengths is not None and bool(built.lengths.longest_rows),
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
    """Step time and what follows from it (`meter.step_times`). `tokens_per_step` counts all ranks."""
    metrics = step_metrics(
        warmup_seconds=steps.warmup_seconds,
        step_seconds=steps.step_seconds,
        section_seconds=steps.section_seconds,
        tokens_per_step=tokens_per_step,
        world_size=world_size,
    )
    waits = steps.section_seconds.get("data_wait", [])
    at_epochs = [wait for wait, starts in zip(waits, steps.epoch_starts, strict=bool(waits)) if starts]
    if at_epochs:
        metrics["data_wait_epoch_start_seconds"] = statistics.fmean(at_epochs)
    if steps.num_skipped_steps is not None:
        metrics["num_skipped_steps"] = steps.num_skipped_steps
    metrics.update(compile_metrics(steps.warmup_compilations, steps.counted_compilations))
    return metrics


def time_details(steps: TimedSteps) -> dict[str, Any]:
    """What stands beside the step time: whether it settled, and what was compiled again and why."""
    return {
        "settled": steps.settled,
        "compilations": [asdict(found) for found in steps.warmup_compilations],
        "recompilations": [asdict(found) for found in steps.counted_compilations],
        "compile_limits": steps.compile_limits,
    }


def memory_metrics(session: Session, built: Built) -> dict[str, float]:
    """Peaks of a step in the steady state, when the optimizer's state is there. On the CPU: counted, and RSS."""
    return device_memory_metrics(session.device) or _counted_memory(session, built)


def _counted_memory(session: Session, built: Built) -> dict[str, float]:
    on_cpu = {
        "peak_allocated_bytes": counted_peak(session, built, built.trainer.train_step),
        "peak_rss_bytes": peak_rss_bytes(),
        "memory_limit_bytes": session.config.hardware.memory_bytes,
    }
    return {name: float(value) for name, value in on_cpu.items() if value is not None}


def _tokens_per_step(session: Session) -> int:
    train = session.config.train
    return train.micro_batch_size * train.seq_len * session.arithmetic.grad_accum_steps


def _time_evaluation(session: Session, built: Built) -> float:
    num_batches = min(NUM_EVAL_BATCHES, session.config.train.num_eval_batches)
    if session.config.train.compile:
        built.trainer.evaluate(1)  # evaluation has code of its own, which is compiled once in a run
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
    needed = _needed_flops(session, built, tensors)
    executed = count_executed_flops(built.trainer.train_step)
    metrics = {"num_executed_flops_per_token": executed / _tokens_per_step(session)}
    if needed is not None:
        metrics["num_flops_per_token"] = needed / (train.micro_batch_size * train.seq_len)
    peak_flops = hardware.peak_flops.get(session.config.precision.flops_format)
    if peak_flops and needed:
        metrics["mfu"] = mfu(tokens_per_second, metrics["num_flops_per_token"], peak_flops)
    if peak_flops and executed:
        metrics["hfu"] = mfu(tokens_per_second, metrics["num_executed_flops_per_token"], peak_flops)
    return metrics


def _needed_flops(session: Session, built: Built, tensors: dict[str, Tensor]) -> int | None:
    """Of one micro-batch. Frozen weights take no gradient of their own, so their backward has to be run and counted;
    None where it would recompute activations, which no counter tells from what is needed."""
    model = built.trainer.model
    if all(parameter.requires_grad for parameter in model.parameters()):
        return count_training_flops(lambda: model(**tensors).loss)
    if session.config.activation_checkpointing.mode != "none":
        return None
    whole = count_executed_flops(built.trainer.train_step, recomputed_scores=False)
    return whole // session.arithmetic.grad_accum_steps
