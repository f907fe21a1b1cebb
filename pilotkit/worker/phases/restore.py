"""Phases of `restore`: a run that never stops, a run that saves and ends, and a new process that goes on from there.

Each leaves a trace of its steps; the last and the first one also fingerprints of everything that must come back.
The driver compares them: no phase judges itself.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pilotkit.config.load import dump
from pilotkit.train import checkpoint
from pilotkit.train.seeding import random_state
from pilotkit.worker.build import Built, build, mesh_of
from pilotkit.worker.session import Session

CHECKPOINT_NAME = "restore"


def run_without_stop(session: Session) -> dict[str, Any]:
    """2k steps in one process group."""
    built = _build(session)
    num_steps = session.config.restore.num_steps
    steps = _run(session, built, num_steps=2 * num_steps, label="uninterrupted")
    return _finish(session, built, steps)


def run_and_save(session: Session) -> dict[str, Any]:
    """k steps, then a checkpoint; the processes end after it."""
    built = _build(session)
    steps = _run(session, built, num_steps=session.config.restore.num_steps, label="before the save")
    saved = checkpoint.save(
        built.trainer, session.run_dir.checkpoints / CHECKPOINT_NAME, config_text=dump(session.config)
    )
    built.close()
    return {
        "steps": steps,
        "metrics": {"checkpoint_bytes": saved.num_bytes, "checkpoint_save_seconds": saved.seconds},
    }


def load_and_run(session: Session) -> dict[str, Any]:
    """A new process group: load, then the other k steps."""
    built = _build(session)
    given = session.config.restore.path
    path = Path(given) if given else session.run_dir.checkpoints / CHECKPOINT_NAME
    loaded = checkpoint.load(built.trainer, path)
    restart_seconds = session.seconds_since_start()
    steps = _run(session, built, num_steps=session.config.restore.num_steps, label="after the restore")
    result = _finish(session, built, steps)
    result["restored_step"] = loaded.step
    result["metrics"] = {"checkpoint_load_seconds": loaded.seconds, "restart_seconds": restart_seconds}
    return result


def _build(session: Session) -> Built:
    strategy = session.config.parallelism.strategy
    dp_replicate, dp_shard = mesh_of(session, strategy=strategy)
    return build(session, strategy=strategy, dp_replicate=dp_replicate, dp_shard=dp_shard)


def _run(session: Session, built: Built, *, num_steps: int, label: str) -> list[dict[str, Any]]:
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
    trainer = built.trainer
    fingerprints = _fingerprints(session, built)
    eval_loss = trainer.evaluate(session.config.train.num_eval_batches)
    built.close()
    return {
        "steps": steps,
        "fingerprints": fingerprints,
        "step": trainer.step,
        "tokens_seen": trainer.tokens_seen,
        "eval_loss": eval_loss,
    }


def _fingerprints(session: Session, built: Built) -> dict[str, dict[str, Any]]:
    """SHA-256 of every part of every component, by rank: the first one that differs can be named."""
    trainer = built.trainer
    parts: dict[str, dict[str, str]] = {
        "parameters": _digests(trainer.model.state_dict()),
        "optimizer": _digests(trainer.optimizer.state_dict()),
        "scheduler": _digests(trainer.scheduler.state_dict()),
        "scaler": _digests(trainer.scaler.state_dict() if trainer.scaler is not None else {}),
        "random_states": _digests(random_state(session.device.torch_device)),
        "data_position": _digests(trainer.train_rows.state_dict()),
    }
    by_rank = session.gather(parts)
    return {
        component: {f"rank {rank}": values[component] for rank, values in enumerate(by_rank)}  # type: ignore[index] # what was gathered is `parts`
        for component in parts
    }


def _digests(state: Any) -> dict[str, str]:
    return {name: _digest(value) for name, value in _flat(state)}


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key in value:
            yield from _flat(value[key], f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _flat(item, f"{name}.{index}")
    else:
        yield name, value


def _digest(value: Any) -> str:
    digest = hashlib.sha256()
    if isinstance(value, torch.Tensor):
        local = value.to_local() if isinstance(value, DTensor) else value
        plain = local.detach().cpu().contiguous()
        digest.update(f"{plain.dtype} {tuple(plain.shape)} ".encode())
        digest.update(plain.view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    else:
        digest.update(repr(value).encode())
    return digest.hexdigest()
