"""Save while training goes on: the state is copied to host memory, and written by torch's own background thread.

    saver = AsyncSaver()                    # on every rank, before the first save
    pending = saver.save(trainer, path, config_text=...)     # training stands still only for the copy
    ...
    saved = pending.result()                # on the disk, with its name; raises CheckpointError
    saver.close()                           # before the process group ends

What is saved are the values at the moment of the call, scalars and random states included. One save at a time: the next
call waits for the one before and raises what that raised. The folder has its name, and `on_saved` is called, only after
the last byte is on the disk. Host memory for one more copy of this rank's share is needed while a save is pending.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_saver

from pilotkit.records import checkpoint_store
from pilotkit.train.checkpoint import SavedCheckpoint
from pilotkit.train.ranks import has_group
from pilotkit.train.saving import NO_GROUP_WARNING, Content, collect, explained, finish, nothing_left, prepare
from pilotkit.train.tensor_files import TensorWriter, num_files_for
from pilotkit.train.trainer import Trainer

PendingSave = Future[SavedCheckpoint]
OnSaved = Callable[[SavedCheckpoint], None]


class AsyncSaver:
    """Saves of one run, one after the other. Every rank makes one and calls it at the same steps."""

    def __init__(self) -> None:
        # Collectives of training run at the same time: a group of our own, and one that needs no device.
        self._group: dist.ProcessGroup | None = dist.new_group(backend="gloo") if has_group() else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pilotkit-async-save")
        self._pending: PendingSave | None = None

    def save(
        self,
        trainer: Trainer,
        path: Path,
        *,
        config_text: str,
        lock_text: str = "",
        eval_loss: float | None = None,
        on_saved: OnSaved | None = None,
    ) -> PendingSave:
        """As `checkpoint.save`, but returns once the state is copied. `on_saved` is called in the background.

        Raises CheckpointError when `path` cannot be begun, or when the save before failed.
        """
        self.wait()
        started = time.perf_counter()
        part = checkpoint_store.part_of(path)
        # For good, and not around the call: filters belong to the process, and the thread outlives the call.
        warnings.filterwarnings("ignore", message=NO_GROUP_WARNING, category=UserWarning)
        with explained(path, doing="saved"), nothing_left(part, rank=trainer.rank):
            prepare(path, part=part, rank=trainer.rank)
            content = collect(trainer, config_text=config_text, lock_text=lock_text, eval_loss=eval_loss)
            # What is written is a copy on the CPU, whatever the device.
            writer = TensorWriter(part, num_files=num_files_for(content.tensors.values(), on_cpu=True))
            tensors = state_dict_saver.async_save(content.tensors, storage_writer=writer, process_group=self._group)
        blocking_seconds = time.perf_counter() - started

        def until_it_has_its_name() -> SavedCheckpoint:
            num_bytes = self._finish(content, tensors, writer, path)
            saved = SavedCheckpoint(path, num_bytes, time.perf_counter() - started, blocking_seconds)
            if on_saved is not None:
                on_saved(saved)
            return saved

        self._pending = self._thread.submit(until_it_has_its_name)
        return self._pending

    def _finish(self, content: Content, tensors: Any, writer: TensorWriter, path: Path) -> int:
        part = checkpoint_store.part_of(path)
        with explained(path, doing="saved"), nothing_left(part, rank=content.rank):
            tensors.result()
            return finish(content, writer.entries, path=path, part=part, group=self._group)

    def wait(self) -> SavedCheckpoint | None:
        """The save that is pending, on the disk; None when there is none. Raises CheckpointError when it failed."""
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    def close(self) -> None:
        """Wait, then end the thread. Raises as `wait`."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
