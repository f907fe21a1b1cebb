"""Phase `pilot`: the same steps under one strategy on all the devices of a node (or on one, to compare with)."""

from __future__ import annotations

from typing import Any

from pilotkit.worker.build import build, mesh_of
from pilotkit.worker.phases.measure import memory_metrics, refuse_other_tenants, time_metrics
from pilotkit.worker.session import Session
from pilotkit.worker.steps import run_timed_steps


def pilot(session: Session, *, strategy: str) -> dict[str, Any]:
    """Warm up, run the counted steps, then compare the ranks. Peaks are the highest of all ranks."""
    options = session.config.pilot
    train = session.config.train
    refuse_other_tenants(session)
    dp_replicate, dp_shard = mesh_of(session, strategy=strategy)
    built = build(session, strategy=strategy, dp_replicate=dp_replicate, dp_shard=dp_shard)
    session.device.reset_peak()
    steps = run_timed_steps(
        session,
        built,
        num_warmup_steps=options.num_warmup_steps,
        num_measured_steps=options.num_measured_steps,
        label=strategy,
    )
    start_seconds = session.seconds_since_start() - sum(steps.warmup_seconds[1:]) - sum(steps.step_seconds)
    rows = train.micro_batch_size * session.arithmetic.grad_accum_steps * session.world_size
    metrics = time_metrics(steps, tokens_per_step=rows * train.seq_len, world_size=session.world_size)
    metrics["start_seconds"] = start_seconds
    metrics["num_params"] = built.num_params
    memory = {name: session.highest(value) for name, value in sorted(memory_metrics(session, built).items())}
    metrics.update(memory)
    devices = session.gather(session.device.name)
    local_ranks = session.gather(session.rank)
    built.close()
    return {
        "metrics": metrics,
        "steps": steps.step_seconds,
        "devices": devices,
        "ranks": local_ranks,
        "mesh": {"dp_replicate": dp_replicate, "dp_shard": dp_shard},
        "losses": [steps.first.loss, steps.last.loss],
    }
