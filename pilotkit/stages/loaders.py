"""What stage `budget` finds out about the loaders: their cores, their shared memory, and how many devices they feed.

Called by that stage alone. Starts the loaders without a model, in a worker as everything else.
"""

from __future__ import annotations

import os
from typing import Any

from pilotkit.cpus import shared_memory_free_bytes, shared_memory_needed_bytes, usable_cpus
from pilotkit.decide.supply import supply_of
from pilotkit.errors import StageRefused
from pilotkit.launch.environment import worker_environment
from pilotkit.records.record import Failure, Metrics
from pilotkit.stages.run import Run
from pilotkit.units import format_bytes


def supply(run: Run, metrics: Metrics, notes: list[str]) -> dict[str, Any] | None:
    """The loaders of one rank alone, against what a device takes. Not where the device itself is missing."""
    if not run.config.budget.measure_supply:
        return None
    try:
        run.devices()
    except StageRefused as error:
        notes.append(f"data supply was not measured: {error}")
        return None
    outcome = run.work("budget_supply")
    if outcome.status != "ok":
        notes.append(f"data supply was not measured: {outcome.failure.summary if outcome.failure else outcome.status}")
        return None
    found = outcome.result["metrics"]
    names = ("loader_tokens_per_second", "loader_batch_seconds", "loader_batch_p95_seconds")
    metrics.add("measured", {name: found[name] for name in names})
    nproc = run.arithmetic.nproc_per_node
    per_node = found["loader_tokens_per_second"] * nproc
    metrics.add("projected", supply_tokens_per_second=per_node)
    demand = _demand(run)
    if demand is None:
        return {"per_node": per_node}
    fed = supply_of(per_node=per_node, demand_per_device=demand, devices_per_node=nproc)
    metrics.add("measured", demand_tokens_per_second=demand)
    return {
        "per_node": per_node,
        "demand_per_device": demand,
        "max_devices_per_node": fed.max_devices_per_node,
        "sentence": fed.sentence,
    }


def _demand(run: Run) -> float | None:
    """Tokens per second of one device that never waits for data."""
    measure = run.evidence.get("measure")
    if measure is None or not {"step_seconds", "tokens_per_step"} <= measure.metrics.keys():
        return None
    busy = measure.metrics["step_seconds"] - measure.metrics.get("data_wait_seconds", 0.0)
    return measure.metrics["tokens_per_step"] / busy if busy > 0 else None


def loader_cores(run: Run) -> tuple[dict[str, object], list[str]]:
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


def shared_memory(run: Run, metrics: Metrics) -> Failure | None:
    """What would kill the loader processes with a bus error, before it does; None when there is enough."""
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
