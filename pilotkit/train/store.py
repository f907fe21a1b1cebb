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

import dataclasses
from typing import Any

from pilotkit.records.checkpoint_store import CheckpointStore, Retention
from pilotkit.train import checkpoint
from pilotkit.train.async_save import AsyncSaver, PendingSave
from pilotkit.train.checkpoint import CheckpointError, DamagedCheckpoint, LoadedCheckpoint, SavedCheckpoint
from pilotkit.train.ranks import gather_objects, synchronize_ranks
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
    publish(store, saved, rank=trainer.rank, retention=retention)
    synchronize_ranks()
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
    """What follows a finished save, on rank 0. The old ones go last: there is never a moment with none."""
    if rank == 0:
        store.publish(saved.path)
        if retention is not None:
            store.retain(retention)


def load_newest(store: CheckpointStore, trainer: Trainer, **options: Any) -> LoadedCheckpoint | None:
    """Restore the newest checkpoint that verifies; None when the folder holds none at all.

    A damaged one is passed over and named in `passed_over`; one that does not belong to this run is not, as an older
    one would hide that. Raises CheckpointError when all are damaged. `options` are those of `checkpoint.load`.
    """
    # Rank 0's list: another rank may see a folder that a retention is changing, and all must try the same ones.
    paths = gather_objects(list(reversed(store.whole())))[0]
    passed_over: list[str] = []
    for path in paths:
        try:
            loaded = checkpoint.load(trainer, path, **options)
        except DamagedCheckpoint as error:
            passed_over += str(error).splitlines()
            continue
        if trainer.rank == 0 and not passed_over:
            store.publish(path)  # the saver may have died between the name and `latest`
        return dataclasses.replace(loaded, passed_over=tuple(passed_over))
    if passed_over:
        raise CheckpointError("\n".join([f"{store.root}: every checkpoint is damaged", *passed_over]))
    return None
