"""Phases of `restore`: a run that never stops, a run that saves and ends, and a new process that goes on from there.

Each leaves a trace of its steps and fingerprints of everything that must come back, taken on both sides of the save and
at the end. The driver compares them: no phase judges itself.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pilotkit.config.load import dump
from pilotkit.config.resume import is_allowed, refuse_differences
from pilotkit.provenance.resume import refuse_lock_drift
from pilotkit.records.checkpoint_check import is_store
from pilotkit.records.remote_store import FETCHED_NAME
from pilotkit.train import checkpoint, fingerprint
from pilotkit.train.async_save import AsyncSaver
from pilotkit.train.checkpoint import CheckpointError
from pilotkit.train.export import export
from pilotkit.train.store import CheckpointStore, load_newest
from pilotkit.transfer import is_url
from pilotkit.worker.build import Built, build, mesh_of
from pilotkit.worker.session import Session

CHECKPOINT_NAME = "restore"
EXPORT_NAME = "export"


def run_without_stop(session: Session) -> dict[str, Any]:
    """2k steps in one process group, with a look at the state in the middle."""
    built = build_for(session, strategy=session.config.parallelism.strategy)
    num_steps = session.config.restore.num_steps
    steps = run_steps(session, built, num_steps=num_steps, label="uninterrupted")
    seam = _state(session, built)
    steps += run_steps(session, built, num_steps=num_steps, label="uninterrupted")
    return {"seam": seam, **_finish(session, built, steps)}


def run_and_save(session: Session) -> dict[str, Any]:
    """k steps, then a checkpoint; the processes end after it."""
    built = build_for(session, strategy=session.config.parallelism.strategy)
    steps = run_steps(session, built, num_steps=session.config.restore.num_steps, label="before the save")
    seam = _state(session, built)
    saved, next_batches = _save(session, built)
    built.close()
    metrics = {
        "checkpoint_bytes": saved.num_bytes,
        "checkpoint_save_seconds": saved.seconds,
        "checkpoint_save_bytes_per_second": saved.num_bytes / saved.seconds,
    }
    if session.config.restore.async_save:
        metrics["checkpoint_blocking_seconds"] = saved.blocking_seconds
    return {"steps": steps, "seam": seam, "next_batches": next_batches, "metrics": metrics}


def _save(session: Session, built: Built) -> tuple[checkpoint.SavedCheckpoint, dict[str, Any]]:
    """The checkpoint, and the batches that follow it. An asynchronous save is tried with steps that change everything.

    What is saved then has to be the moment of the call: it is compared with the state before it, as always.
    """
    path = session.run_dir.checkpoints / CHECKPOINT_NAME
    config_text, locked = dump(session.config), lock_text(session)
    if not session.config.restore.async_save:
        saved = checkpoint.save(built.trainer, path, config_text=config_text, lock_text=locked)
        return saved, _next_batches(session, built)
    saver = AsyncSaver()
    pending = saver.save(built.trainer, path, config_text=config_text, lock_text=locked)
    next_batches = _next_batches(session, built)
    run_steps(session, built, num_steps=session.config.restore.num_steps, label="while it is saved")
    saved = pending.result()
    saver.close()
    return saved, next_batches


def load_and_run(session: Session) -> dict[str, Any]:
    """A new process group: load, look, then the other k steps."""
    built = build_for(session, strategy=session.config.parallelism.strategy)
    given = session.config.restore.path
    path = session.run_dir.checkpoints / (FETCHED_NAME if given and is_url(given) else CHECKPOINT_NAME)
    loaded = load_checked(session, built, Path(given) if given and not is_url(given) else path)
    restart_seconds = session.seconds_since_start()
    seam = _state(session, built)
    next_batches = _next_batches(session, built)
    if session.config.restore.export:
        export(built.trainer, session.run_dir.checkpoints / EXPORT_NAME)
    steps = run_steps(session, built, num_steps=session.config.restore.num_steps, label="after the restore")
    return {
        "restored_step": loaded.step,
        "restored_from": str(loaded.path),
        "export": str(session.run_dir.checkpoints / EXPORT_NAME) if session.config.restore.export else None,
        "passed_over": list(loaded.passed_over),
        "seam": seam,
        "next_batches": next_batches,
        "metrics": {
            "checkpoint_load_seconds": loaded.seconds,
            "checkpoint_load_bytes_per_second": loaded.num_bytes / loaded.seconds,
            "restart_seconds": restart_seconds,
        },
        **_finish(session, built, steps),
    }


def load_checked(session: Session, built: Built, path: Path) -> checkpoint.LoadedCheckpoint:
    """Load one checkpoint, or the newest sound one of a folder of them, if it belongs to this configuration."""
    allowed = session.config.restore.allow_changes

    def accept(config_text: str) -> None:
        refuse_differences(config_text, session.config, allowed=allowed)

    def accept_lock(saved_text: str) -> None:
        refuse_lock_drift(saved_text, lock_text(session), allowed=allowed)

    options: dict[str, Any] = {
        "accept_config": accept,
        "accept_lock": accept_lock,
        "allow_dtype_change": is_allowed("precision.param_dtype", allowed),
    }
    if not is_store(path):
        return checkpoint.load(built.trainer, path, **options)
    # The proof looks at a folder that is somebody's: it changes nothing there.
    loaded = load_newest(CheckpointStore(path), built.trainer, set_aside=False, **options)
    if loaded is None:
        raise CheckpointError(f"{path}: holds no checkpoint that could be loaded")
    return loaded


def lock_text(session: Session) -> str:
    """What the driver found locked for this run; empty where nothing was."""
    try:
        return session.run_dir.lock.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def build_for(session: Session, *, strategy: str, grad_accum_steps: int | None = None) -> Built:
    """The trainer for a strategy over the ranks that are here."""
    dp_replicate, dp_shard = mesh_of(session, strategy=strategy)
    return build(
        session, strategy=strategy, dp_replicate=dp_replicate, dp_shard=dp_shard, grad_accum_steps=grad_accum_steps
    )


def run_steps(session: Session, built: Built, *, num_steps: int, label: str) -> list[dict[str, Any]]:
    """One line a step, with the rows that every rank was given."""
    steps = []
    for index in range(num_steps):
        result = built.trainer.train_step()
        rows = session.gather(list(result.row_ids))
        steps.append(
            {
                "step": result.step,
                "loss": _plain(result.loss),
                "grad_norm": _plain(result.grad_norm),
                "lr": result.lr,
                "row_ids": rows,
                "skipped": result.skipped,
            }
        )
        session.progress(index + 1, num_steps, label=label)
    return steps


def _plain(value: float | None) -> float | str | None:
    """JSON has no infinity, and a step that the loss scaler skipped has one: it is told as text."""
    return value if value is None or math.isfinite(value) else str(value)


def _finish(session: Session, built: Built, steps: list[dict[str, Any]]) -> dict[str, Any]:
    end = _state(session, built)
    # Only a comparison within a tolerance needs distances; equality needs none.
    wanted = session.config.restore.rtol > 0
    sketches = _by_rank(session, fingerprint.sketches(built.trainer)) if wanted else {}
    eval_loss = built.trainer.evaluate(session.config.train.num_eval_batches)
    built.close()
    return {"steps": steps, "end": end, "sketches": sketches, "eval_loss": eval_loss}


def _state(session: Session, built: Built) -> dict[str, dict[str, Any]]:
    """Digests by component, rank and part: the first one that differs can be named."""
    by_rank = session.gather(fingerprint.of_rank(built.trainer))
    return {
        component: {f"rank {rank}": parts[component] for rank, parts in enumerate(by_rank)}  # type: ignore[index] # what was gathered is `of_rank`
        for component in by_rank[0]  # type: ignore[attr-defined]
    }


def _next_batches(session: Session, built: Built) -> dict[str, Any]:
    """The rows that each rank would be given next, and a digest of their content; the position stays where it is."""
    rows = built.trainer.train_rows
    position = rows.state_dict()
    batch = rows.next()
    digests = {name: fingerprint.digest(tensor) for name, tensor in batch.tensors.items()}
    rows.load_state_dict(position)
    return _by_rank(session, {"row_ids": list(batch.row_ids), "digests": digests})


def _by_rank(session: Session, value: Any) -> dict[str, Any]:
    return {f"rank {rank}": gathered for rank, gathered in enumerate(session.gather(value))}
