"""Save into a folder of checkpoints and come back from it: the protocol for a run of days.

    store = CheckpointStore(Path("checkpoints"))
    load_newest(store, trainer)                        # None on the first start
    while ...:
        trainer.train_step()
        save_step(store, trainer, config_text=..., retention=Retention(keep_last=3))

With an `AsyncSaver`, `save_step_async` does the same while training goes on. Every rank calls them. A kill at any
moment leaves the newest whole checkpoint loadable. What is on disk, and what may go, is decided by
`records.checkpoint_store`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from pilotkit.records.checkpoint_store import CheckpointStore, Retention
from pilotkit.train import checkpoint
from pilotkit.train.async_save import AsyncSaver, PendingSave
from pilotkit.train.checkpoint import CheckpointError, DamagedCheckpoint, LoadedCheckpoint, SavedCheckpoint
from pilotkit.train.ranks import gather_objects
from pilotkit.train.trainer import Trainer

__all__ = ["CheckpointStore", "Retention", "load_newest", "save_step", "save_step_async"]


def save_step(
    store: CheckpointStore,
    trainer: Trainer,
    *,
    config_text: str,
    lock_text: str = "",
    retention: Retention | None = None,
    eval_loss: float | None = None,
) -> SavedCheckpoint:
    """Save at the trainer's step, let `latest` name it, then apply the retention. Raises CheckpointError as `save`."""
    path = store.path_of(trainer.step)
    saved = checkpoint.save(trainer, path, config_text=config_text, lock_text=lock_text, eval_loss=eval_loss)
    problem = ""
    try:
        publish(store, saved, rank=trainer.rank, retention=retention)
    except CheckpointError as error:
        problem = str(error)
    # All ranks raise: the others would wait for one that ended.
    problem = gather_objects(problem)[0]
    if problem:
        raise CheckpointError(problem)
    return saved


def save_step_async(
    store: CheckpointStore,
    trainer: Trainer,
    *,
    saver: AsyncSaver,
    config_text: str,
    lock_text: str = "",
    retention: Retention | None = None,
    eval_loss: float | None = None,
) -> PendingSave:
    """`save_step` by `saver`: `latest` and the retention follow in the background, after the last byte is on the disk.

    Until then `latest` names the one before, which no retention takes. Raises CheckpointError as `AsyncSaver.save`.
    """
    rank = trainer.rank

    def on_saved(saved: SavedCheckpoint) -> None:
        publish(store, saved, rank=rank, retention=retention)

    path = store.path_of(trainer.step)
    return saver.save(
        trainer, path, config_text=config_text, lock_text=lock_text, eval_loss=eval_loss, on_saved=on_saved
    )


def publish(store: CheckpointStore, saved: SavedCheckpoint, *, rank: int, retention: Retention | None) -> None:
    """What follows a finished save, on rank 0. The old ones go last: there is never a moment with none.

    Raises CheckpointError when the disk refuses; the checkpoint is saved all the same, and `load_newest` finds it.
    """
    if rank != 0:
        return
    try:
        store.publish(saved.path)
        if retention is not None:
            store.retain(retention)
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(f"{saved.path}: is saved, but what follows a save failed: {reason}") from error


def load_newest(
    store: CheckpointStore, trainer: Trainer, *, set_aside: bool = True, **options: Any
) -> LoadedCheckpoint | None:
    """Restore the newest checkpoint that verifies; None when the folder holds none at all.

    A damaged one is passed over and named in `passed_over`; one that does not belong to this run is not, as an older
    one would hide that. Raises CheckpointError when all are damaged. `options` are those of `checkpoint.load`.

    With `set_aside` what was passed over gives up its name, as the run will save at that step again. Without it,
    nothing in the folder changes: for who only looks.
    """
    # Rank 0's list: another rank may see a folder that a retention is changing, and all must try the same ones.
    paths = gather_objects(list(reversed(store.whole())))[0]
    passed_over: list[str] = []
    damaged: list[Path] = []
    for path in paths:
        try:
            loaded = checkpoint.load(trainer, path, **options)
        except DamagedCheckpoint as error:
            passed_over += str(error).splitlines()
            damaged.append(path)
            continue
        if trainer.rank == 0 and set_aside:
            with contextlib.suppress(OSError):  # a folder that may only be read was read
                for one in damaged:
                    store.set_aside_damaged(one)
                store.publish(path)  # the saver may have died between the name and `latest`
        return dataclasses.replace(loaded, passed_over=tuple(passed_over))
    if passed_over:
        raise CheckpointError("\n".join([f"{store.root}: every checkpoint is damaged", *passed_over]))
    return None
