"""Phase `pilot`: the same steps under one strategy on all the devices of a node (or on one, to compare with)."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict
from typing import Any

from pilotkit.meter.communication import Communication, profile_step
from pilotkit.meter.dtypes import DtypeTable, DtypeWatch
from pilotkit.worker.attempts import Attempt
from pilotkit.worker.build import Built, build, mesh_of
from pilotkit.worker.phases.measure import memory_metrics, refuse_other_tenants, time_details, time_metrics
from pilotkit.worker.session import Session
from pilotkit.worker.steps import run_timed_steps


def pilot(session: Session, *, strategy: str) -> dict[str, Any]:
    """Warm up, run the counted steps, then compare the ranks. Peaks are the highest of all ranks.

    When it is told to end it saves between two steps and returns `{"stopped_at": step}`. The attempt after that goes on
    from there: it warms up again, as its processes are new, and counts the steps that are left.
    """
    options = session.config.pilot
    train = session.config.train
    refuse_other_tenants(session)
    dp_replicate, dp_shard = mesh_of(session, strategy=strategy)
    built = build(session, strategy=strategy, dp_replicate=dp_replicate, dp_shard=dp_shard, longest_rows=True)
    attempt = Attempt(session, built, every_steps=options.checkpoint_every_steps)
    num_counted = attempt.resume()
    session.device.reset_peak()
    steps = run_timed_steps(
        session,
        built,
        num_warmup_steps=options.num_warmup_steps,
        max_warmup_steps=options.max_warmup_steps,
        num_measured_steps=options.num_measured_steps - num_counted,
        label=strategy,
        is_over=attempt.is_over,
    )
    if steps.is_cut_short:
        built.close()
        return {"stopped_at": built.trainer.step}
    carried = attempt.joined(steps)
    steps = dataclasses.replace(
        steps,
        warmup_seconds=carried.warmup_seconds,
        step_seconds=carried.step_seconds,
        section_seconds=carried.section_seconds,
        epoch_starts=carried.epoch_starts,
    )
    rows = train.micro_batch_size * session.arithmetic.grad_accum_steps * session.world_size
    metrics = time_metrics(steps, tokens_per_step=rows * train.seq_len, world_size=session.world_size)
    metrics["start_seconds"] = carried.start_seconds + steps.warmup_seconds[0]
    metrics["num_params"] = built.num_params
    memory = memory_metrics(session, built)
    # What one rank cannot tell (who else is on its device) none does: every rank has to ask for the same ones.
    told: list[Any] = session.gather(sorted(memory))
    everywhere = sorted(set(memory).intersection(*told))
    metrics.update({name: session.highest(memory[name]) for name in everywhere})
    communication, dtypes = _look_closer(session, built)
    metrics.update(communication_metrics(communication))
    devices = session.gather(session.device.name)
    local_ranks = session.gather(session.rank)
    built.close()
    return {
        "metrics": metrics,
        "steps": steps.step_seconds,
        "time": time_details(steps),
        "unreached": built.trainer.unreached(),
        "overridden": list(built.overridden),
        "devices": devices,
        "ranks": local_ranks,
        "mesh": {"dp_replicate": dp_replicate, "dp_shard": dp_shard},
        "losses": [carried.first_loss, steps.last.loss],
        "attempts": carried.attempts,
        "communication": {kind: asdict(found) for kind, found in communication.by_kind.items()},
        "dtypes": asdict(dtypes),
    }


def _look_closer(session: Session, built: Built) -> tuple[Communication, DtypeTable]:
    """Two more steps, one under the profiler and one under the watch of dtypes: both would slow counted ones down."""
    trainer = built.trainer
    # What the profiler loads at its first start would be part of the step.
    profile_step(lambda: None, synchronize=session.device.synchronize)
    communication = profile_step(trainer.train_step, synchronize=session.device.synchronize)
    with DtypeWatch(trainer.model) as watch:
        trainer.train_step()
    return communication, watch.table


def communication_metrics(found: Communication) -> dict[str, float]:
    """Rank 0's profiled step in figures. Shares are of that step: profiling makes it longer than a counted one."""
    metrics: dict[str, float] = {
        "comm_seconds": found.total_seconds,
        "exposed_comm_seconds": found.exposed_seconds,
        "exposed_comm_share": found.exposed_seconds / found.step_seconds if found.step_seconds else 0.0,
        "profiled_step_seconds": found.step_seconds,
    }
    for kind, collective in found.by_kind.items():
        metrics[f"{kind}_seconds"] = collective.seconds
        if collective.num_bytes is not None:
            metrics[f"{kind}_bytes"] = collective.num_bytes
        if collective.bytes_per_second is not None:
            metrics[f"{kind}_bytes_per_second"] = collective.bytes_per_second
    return metrics
