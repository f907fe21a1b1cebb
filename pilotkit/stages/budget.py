"""Stage `budget`: what does everything around the step cost? A ledger over the records that are there."""

from __future__ import annotations

import dataclasses
import math
import os

from pilotkit.cpus import shared_memory_free_bytes, shared_memory_needed_bytes, usable_cpus
from pilotkit.decide.ledger import build_ledger
from pilotkit.launch.environment import worker_environment
from pilotkit.records.record import Failure, Metrics
from pilotkit.stages.run import Run, StageResult
from pilotkit.units import format_bytes


def run(run: Run) -> StageResult:
    """Lay out the intended run, and check that this machine's loaders have the cores and the memory they need."""
    config, arithmetic = run.config, run.arithmetic
    num_steps = arithmetic.num_steps
    ledger = build_ledger(
        run.evidence,
        num_steps=num_steps,
        num_evals=num_steps // config.train.eval_every_steps,
        num_eval_batches=config.train.num_eval_batches,
        num_checkpoints=math.ceil(num_steps / config.train.checkpoint_every_steps),
        download_seconds=config.budget.download_seconds,
        copy_out_seconds=config.budget.copy_out_seconds,
        strategy=config.parallelism.strategy,
        world_size=arithmetic.world_size,
    )
    metrics = Metrics()
    metrics.add(
        "projected",
        total_seconds=ledger.total_seconds,
        step_total_seconds=ledger.step_total_seconds,
        goodput=ledger.goodput,
    )
    metrics.add("given", num_steps=num_steps, tokens_per_step=arithmetic.tokens_per_step)
    threads, warnings = _loader_cores(run)
    details = {
        "ledger": [dataclasses.asdict(line) for line in ledger.lines],
        "unknown": ledger.unknown,
        "threads": threads,
        "warnings": warnings,
    }
    problem = _shared_memory(run, metrics)
    for text in [*warnings, *([problem.summary] if problem else [])]:
        run.console.line(f"  note: {text}")
    return StageResult("failed" if problem else "ok", metrics, details, problem=problem)


def _loader_cores(run: Run) -> tuple[dict[str, object], list[str]]:
    """How many cores there really are here, who chose the threads, and how many loader processes they can feed."""
    cpus = usable_cpus()
    nproc = run.arithmetic.nproc_per_node
    environment = worker_environment(
        os.environ,
        run_dir=run.run_dir.path,
        usable_cpus=cpus.count,
        nproc=max(nproc, run.config.hardware.device_count),  # as in `Run.work`
    )
    suggested = max(cpus.count // nproc, 1)
    threads = {
        "usable_cpus": cpus.count,
        "usable_cpus_source": cpus.source,
        "num_threads": environment.num_threads,
        "threads_set_by": environment.threads_set_by,
        "suggested_num_workers": min(suggested, cpus.count),
    }
    asked = run.config.data.num_workers * nproc
    if asked <= cpus.count:
        return threads, []
    return threads, [
        f"{asked} loader processes ({nproc} ranks x data.num_workers {run.config.data.num_workers}) share "
        f"{cpus.count} usable cores ({cpus.source}); data.num_workers={suggested} would fit"
    ]


def _shared_memory(run: Run, metrics: Metrics) -> Failure | None:
    data, train = run.config.data, run.config.train
    if not data.num_workers:
        return None
    record = run.evidence.get("measure") or run.evidence.get("prove")
    batch_bytes = record.metrics.get("batch_bytes") if record else None
    # Nothing was measured yet: a language model's row is two int64 tensors, ids and labels.
    origin, size = (
        ("measured", batch_bytes) if batch_bytes else ("projected", train.micro_batch_size * train.seq_len * 16)
    )
    nproc = run.arithmetic.nproc_per_node
    needed = nproc * shared_memory_needed_bytes(
        int(size or 0), num_workers=data.num_workers, prefetch_factor=data.prefetch_factor
    )
    free = shared_memory_free_bytes()
    metrics.add(origin, shared_memory_needed_bytes=needed)
    metrics.add("measured", shared_memory_free_bytes=free)
    if free is None or free >= needed:
        return None
    return Failure(
        f"shared memory is too small for the loaders: {format_bytes(needed)} needed, {format_bytes(free)} free",
        cause=f"{nproc} ranks x data.num_workers {data.num_workers} x data.prefetch_factor {data.prefetch_factor} "
        f"x {format_bytes(size or 0)} a batch; make it larger (docker run --shm-size=...) or lower data.num_workers",
    )
