"""What stage `budget` finds out about the loaders: their cores, their shared memory, and how many devices they feed.

Called by that stage alone. Starts nothing: stage `measure` has run the loader without a model.
"""

from __future__ import annotations

import os
from typing import Any

from pilotkit.cpus import shared_memory_free_bytes, shared_memory_needed_bytes, usable_cpus
from pilotkit.decide.supply import supply_of
from pilotkit.launch.environment import worker_environment
from pilotkit.records.record import Failure, Metrics
from pilotkit.stages.run import Run
from pilotkit.units import format_bytes


def supply(run: Run, metrics: Metrics) -> dict[str, Any] | None:
    """What the loaders of a node deliver against what its devices take; None where nothing was measured.

    Stage `measure` ran one rank's loader alone; the ranks of a node each have one, and an equal share of its cores.
    """
    measure = run.evidence.get("measure")
    found = measure.metrics if measure is not None else {}
    if not {"loader_tokens_per_second", "step_seconds", "tokens_per_step"} <= found.keys():
        return None
    nproc = run.arithmetic.nproc_per_node
    per_node = found["loader_tokens_per_second"] * nproc
    # A device that never waits takes this much.
    demand = found["tokens_per_step"] / max(found["step_seconds"] - found.get("data_wait_seconds", 0.0), 1e-9)
    fed = supply_of(per_node=per_node, demand_per_device=demand, devices_per_node=nproc)
    metrics.add("projected", supply_tokens_per_second=per_node)
    metrics.add("measured", demand_tokens_per_second=demand)
    return {
        "per_node": per_node,
        "demand_per_device": demand,
        "max_devices_per_node": fed.max_devices_per_node,
        "sentence": fed.sentence,
    }


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
