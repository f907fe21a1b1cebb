"""Save and restore everything a run needs to continue: for every strategy, and at another world size.

    <path>/
        __<rank>_<n>.distcp, .metadata   model and optimizer tensors (torch.distributed.checkpoint), saved by every rank
        random-<rank>.pt                 generators of each rank
        trainer.json                     scalars: step, schedule, scaler, data position, param groups, configuration
        manifest.json                    size and sha256 of all of these; written last

Calls of `save` (`saving`): rank 0 makes `.<name>.part`; all ranks write and describe their files; rank 0 writes the
manifest and renames. `async_save` does the same while training goes on. Calls of `load`: all ranks verify a share of
the files, compare names, read. Every rank has to call both.
Nothing but tensors goes through DCP: it would unpickle other values without `weights_only`, as it does with its index,
which is why that is read by `records.tensor_index`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

from pilotkit.errors import CheckpointError
from pilotkit.records import checkpoint_store, manifest
from pilotkit.train import scalars
from pilotkit.train.ranks import gather_objects, has_group, synchronize_ranks
from pilotkit.train.saving import (
    SCALARS_FILE,
    alone_without_warning,
    collect,
    explained,
    finish,
    nothing_left,
    prepare,
    read_random_state,
)
from pilotkit.train.seeding import set_random_state
from pilotkit.train.tensor_files import TensorReader, TensorWriter, num_files_for
from pilotkit.train.tensors import check_names, collect_tensors, restore_tensors
from pilotkit.train.trainer import Trainer

__all__ = ["CheckpointError", "DamagedCheckpoint", "LoadedCheckpoint", "SavedCheckpoint", "load", "save"]


class DamagedCheckpoint(CheckpointError):
    """The files are not as they were written: another checkpoint of the same run may still serve."""


@dataclass(frozen=True)
class SavedCheckpoint:
    """A finished checkpoint: its size on disk over all ranks, and the seconds until it had its name.

    `blocking_seconds` of them training stood still: all, unless it was saved by `async_save`.
    """

    path: Path
    num_bytes: int
    seconds: float
    blocking_seconds: float


@dataclass(frozen=True)
class LoadedCheckpoint:
    """What was restored: optimizer steps done, seconds it took (verification included), world size it was saved at."""

    path: Path
    step: int
    num_bytes: int
    seconds: float
    world_size: int
    passed_over: tuple[str, ...] = ()
    """What was wrong with newer checkpoints of the same folder."""


def save(
    trainer: Trainer, path: Path, *, config_text: str, lock_text: str = "", eval_loss: float | None = None
) -> SavedCheckpoint:
    """Save between two steps; training goes on as if nothing had happened, also before the first step.

    Until `path` has its name there is nothing a reader could take for a checkpoint. `lock_text` is what was locked, for
    who compares it; `eval_loss` is only written down, for who chooses the best one. Raises CheckpointError when `path`
    exists already or cannot be written; nothing is left behind then.
    """
    started = time.perf_counter()
    part = checkpoint_store.part_of(path)
    with explained(path, doing="saved"), nothing_left(part, rank=trainer.rank):
        prepare(path, part=part, rank=trainer.rank)
        content = collect(trainer, config_text=config_text, lock_text=lock_text, eval_loss=eval_loss)
        num_files = num_files_for(content.tensors.values(), on_cpu=trainer.device.type == "cpu")
        writer = TensorWriter(part, num_files=num_files)
        with alone_without_warning():
            state_dict_saver.save(content.tensors, storage_writer=writer, no_dist=not has_group())
        num_bytes = finish(content, writer.entries, path=path, part=part)
    seconds = time.perf_counter() - started
    return SavedCheckpoint(path, num_bytes, seconds, blocking_seconds=seconds)


def load(
    trainer: Trainer,
    path: Path,
    *,
    accept_config: Callable[[str], None] = lambda config_text: None,
    accept_lock: Callable[[str], None] = lambda lock_text: None,
    allow_dtype_change: bool = False,
) -> LoadedCheckpoint:
    """Restore into a trainer that was built like the saved one; strategy and world size may differ.

    At a larger world size, ranks that did not exist keep their fresh random states. `accept_config` is given the saved
    configuration, `accept_lock` the saved lock; they raise what they do not like. `allow_dtype_change` casts tensors to
    this run's dtype, which loses bits. Raises DamagedCheckpoint naming the file that is missing or damaged,
    CheckpointError with the names that only one side knows; nothing is restored then.
    """
    started = time.perf_counter()
    num_bytes = _verify(path, rank=trainer.rank, world_size=trainer.world_size)
    with explained(path, doing="restored"):
        saved = scalars.read(path / SCALARS_FILE)
        # Read before anything is restored: what is refused here leaves the trainer as it was.
        random_state = read_random_state(path, trainer.rank)
    accept_config(saved["config_text"])
    accept_lock(saved.get("lock_text", ""))
    with explained(path, doing="restored"):
        tensors = collect_tensors(trainer.model, trainer.optimizer)
        reader = TensorReader(path)
        check_names(tensors, reader.read_metadata(), path=path, allow_dtype_change=allow_dtype_change)
        scalars.check(trainer, saved, path=path)
        with alone_without_warning():
            state_dict_loader.load(tensors, storage_reader=reader, no_dist=not has_group())
        groups = scalars.param_groups(saved)
        restore_tensors(trainer.model, trainer.optimizer, tensors, param_groups=groups)
        scalars.restore(trainer, saved)
        if random_state is not None:
            set_random_state(random_state, device=trainer.device)
        synchronize_ranks()
    seconds = time.perf_counter() - started
    return LoadedCheckpoint(path, trainer.step, num_bytes, seconds, saved["world_size"])


def _verify(path: Path, *, rank: int, world_size: int) -> int:
    """Each rank reads its share of the files; all ranks raise when one finds damage. Returns the bytes of all."""
    found: list[str] = []
    entries: list[manifest.Entry] = []
    try:
        entries = manifest.read(path)
        # Few at a time: the other ranks of this machine read their share now, too.
        found = manifest.damages(path, entries[rank::world_size], most_threads=2)
        if rank == 0:
            found += manifest.foreign(path, entries)
    except CheckpointError as error:
        found = [str(error)]
    damaged = sorted({text for share in gather_objects(found) for text in share})
    if damaged:
        raise DamagedCheckpoint("\n".join(damaged))
    return sum(entry.num_bytes for entry in entries)
