"""Phases of `prove`: one process trains, evaluates and saves; a second one restores and evaluates again."""

from __future__ import annotations

import time
from typing import Any

from pilotkit.config.load import dump
from pilotkit.meter.clock import StepClock
from pilotkit.train import checkpoint
from pilotkit.worker.build import build
from pilotkit.worker.session import Session

CHECKPOINT_NAME = "prove"


def train_and_save(session: Session) -> dict[str, Any]:
    """Load, take complete optimizer steps, evaluate, save."""
    config = session.config
    total = config.prove.num_steps + 3
    process_start_seconds = session.seconds_since_start()
    built = build(session, strategy="single")
    session.progress(1, total, label="prove")
    trainer = built.trainer
    clock = StepClock(session.device.synchronize)
    losses = []
    for index in range(config.prove.num_steps):
        with clock.step():
            losses.append(trainer.train_step(clock).loss)
        session.progress(2 + index, total, label="prove")
    first_wait_seconds = clock.section_seconds["data_wait"][0]
    started = time.perf_counter()
    eval_loss = trainer.evaluate(config.train.num_eval_batches)
    session.device.synchronize()
    eval_seconds = time.perf_counter() - started
    session.progress(total - 1, total, label="prove")
    saved = checkpoint.save(trainer, session.run_dir.checkpoints / CHECKPOINT_NAME, config_text=dump(config))
    session.progress(total, total, label="prove")
    built.close()
    return {
        "metrics": {
            "process_start_seconds": process_start_seconds,
            "first_batch_seconds": built.data_open_seconds + first_wait_seconds,
            "model_load_seconds": built.model_load_seconds,
            "first_step_seconds": clock.step_seconds[0],
            "num_steps": len(losses),
            "num_params": built.num_params,
            "batch_bytes": built.batch_bytes,
            "first_loss": losses[0],
            "last_loss": losses[-1],
            "eval_loss": eval_loss,
            "eval_seconds": eval_seconds,
            "checkpoint_bytes": saved.num_bytes,
            "checkpoint_save_seconds": saved.seconds,
        },
        "checkpoint": str(saved.path),
        "unreached": trainer.unreached(),
        "overridden": list(built.overridden),
    }


def restore_and_evaluate(session: Session) -> dict[str, Any]:
    """In a new process: load what the first one saved, and evaluate on the same rows."""
    config = session.config
    built = build(session, strategy="single")
    session.progress(1, 3, label="restore")
    loaded = checkpoint.load(built.trainer, session.run_dir.checkpoints / CHECKPOINT_NAME)
    restart_seconds = session.seconds_since_start()
    session.progress(2, 3, label="restore")
    eval_loss = built.trainer.evaluate(config.train.num_eval_batches)
    session.progress(3, 3, label="restore")
    built.close()
    return {
        "metrics": {
            "checkpoint_load_seconds": loaded.seconds,
            "restart_seconds": restart_seconds,
            "restored_step": loaded.step,
            "restored_eval_loss": eval_loss,
        }
    }
