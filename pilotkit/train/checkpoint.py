"""Save and restore everything a run needs to continue: for every strategy, and at another world size.

    <path>/
        __<rank>_<n>.distcp, .metadata   model and optimizer tensors (torch.distributed.checkpoint), saved by every rank
        random-<rank>.pt                 generators of each rank
        trainer.json                     scalars: step, schedule, scaler, data position, param groups, configuration
        manifest.json                    size and sha256 of all of these; written last

Calls of `save`: rank 0 makes `.<name>.part`; all ranks write and describe their files; rank 0 writes the manifest and
renames. Calls of `load`: all ranks verify a share of the files, compare names, read. Every rank has to call both.
Nothing but tensors goes through DCP: it would unpickle other values without `weights_only`, as it does with its index,
which is why that is read by `records.tensor_index`.
"""

from __future__ import annotations

import importlib
import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from pilotkit.errors import CheckpointError, ConfigError
from pilotkit.records import atomic, checkpoint_store, manifest
from pilotkit.records.checkpoint_check import INDEX_FILE
from pilotkit.records.tensor_index import load_index
from pilotkit.train import scalars
from pilotkit.train.ranks import gather_objects, has_group, synchronize_ranks
from pilotkit.train.seeding import random_state, set_random_state
from pilotkit.train.tensors import check_names, collect_tensors, restore_tensors
from pilotkit.train.trainer import Trainer

__all__ = ["CheckpointError", "DamagedCheckpoint", "LoadedCheckpoint", "SavedCheckpoint", "load", "save"]

SCALARS_FILE = "trainer.json"


class DamagedCheckpoint(CheckpointError):
    """The files are not as they were written: another checkpoint of the same run may still serve."""


@dataclass(frozen=True)
class SavedCheckpoint:
    """A finished checkpoint: its size on disk over all ranks, and the seconds until it had its name."""

    path: Path
    num_bytes: int
    seconds: float


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


def save(trainer: Trainer, path: Path, *, config_text: str, eval_loss: float | None = None) -> SavedCheckpoint:
    """Save between two steps; training goes on as if nothing had happened, also before the first step.

    Until `path` has its name there is nothing a reader could take for a checkpoint. `eval_loss` is only written down,
    for who chooses the best one. Raises CheckpointError when `path` exists already or cannot be written; nothing is
    left behind then.
    """
    started = time.perf_counter()
    part = checkpoint_store.part_of(path)
    with _explained(path, doing="saved"), _nothing_left(part, rank=trainer.rank):
        _prepare(path, part=part, rank=trainer.rank)
        tensors = collect_tensors(trainer.model, trainer.optimizer)
        with _alone_without_warning():
            state_dict_saver.save(tensors, storage_writer=FileSystemWriter(part), no_dist=not has_group())
        torch.save(random_state(trainer.device), _random_file(part, trainer.rank))
        if trainer.rank == 0:
            atomic.write_json(part / SCALARS_FILE, scalars.collect(trainer, config_text=config_text))
        entries = _describe_files(part, rank=trainer.rank)
        if trainer.rank == 0:
            about = {"step": trainer.step, "world_size": trainer.world_size, "eval_loss": eval_loss}
            manifest.write(part, entries, about=about)
            checkpoint_store.publish_folder(part, path)
        synchronize_ranks()
    num_bytes = sum(entry.num_bytes for entry in entries)
    return SavedCheckpoint(path, num_bytes, time.perf_counter() - started)


def load(
    trainer: Trainer,
    path: Path,
    *,
    accept_config: Callable[[str], None] = lambda config_text: None,
    allow_dtype_change: bool = False,
) -> LoadedCheckpoint:
    """Restore into a trainer that was built like the saved one; strategy and world size may differ.

    At a larger world size, ranks that did not exist keep their fresh random states. `accept_config` is given the saved
    configuration and raises what it does not like. `allow_dtype_change` casts tensors to this run's dtype, which loses
    bits. Raises DamagedCheckpoint naming the file that is missing or damaged, CheckpointError with the names that only
    one side knows; nothing is restored then.
    """
    started = time.perf_counter()
    num_bytes = _verify(path, rank=trainer.rank, world_size=trainer.world_size)
    with _explained(path, doing="restored"):
        saved = json.loads((path / SCALARS_FILE).read_text(encoding="utf-8"))
    accept_config(saved["config_text"])
    with _explained(path, doing="restored"):
        tensors = collect_tensors(trainer.model, trainer.optimizer)
        reader = _TensorReader(path)
        check_names(tensors, reader.read_metadata(), path=path, allow_dtype_change=allow_dtype_change)
        scalars.check(trainer, saved, path=path)
        with _alone_without_warning():
            state_dict_loader.load(tensors, storage_reader=reader, no_dist=not has_group())
        groups = scalars.param_groups(saved)
        restore_tensors(trainer.model, trainer.optimizer, tensors, param_groups=groups)
        scalars.restore(trainer, saved)
        state_file = _random_file(path, trainer.rank)
        if state_file.is_file():
            set_random_state(torch.load(state_file, weights_only=True), device=trainer.device)
        synchronize_ranks()
    seconds = time.perf_counter() - started
    return LoadedCheckpoint(path, trainer.step, num_bytes, seconds, saved["world_size"])


def _random_file(folder: Path, rank: int) -> Path:
    return folder / f"random-{rank}.pt"


def _prepare(path: Path, *, part: Path, rank: int) -> None:
    """An empty folder aside, on every rank; what an earlier save left half done is removed."""
    problem = ""
    if rank == 0:
        try:
            if path.exists():
                problem = f"{path}: exists already; a checkpoint is never written over another"
            else:
                checkpoint_store.claim(part)
        except OSError as error:
            problem = f"{path}: cannot be saved: {error.strerror or error}"
    problem = gather_objects(problem)[0]
    if problem:
        raise CheckpointError(problem)


def _describe_files(part: Path, *, rank: int) -> list[manifest.Entry]:
    """Every rank reads the files that it wrote itself; all of them, in the order of names, on every rank."""
    own = [f"random-{rank}.pt", *(path.name for path in part.glob(f"__{rank}_*"))]
    if rank == 0:
        own += [".metadata", SCALARS_FILE]
    shares: list[list[manifest.Entry]] = gather_objects([manifest.describe(part / name) for name in own])
    return sorted((entry for share in shares for entry in share), key=lambda entry: entry.name)


def _verify(path: Path, *, rank: int, world_size: int) -> int:
    """Each rank reads its share of the files; all ranks raise when one finds damage. Returns the bytes of all."""
    found: list[str] = []
    entries: list[manifest.Entry] = []
    try:
        entries = manifest.read(path)
        found = [text for entry in entries[rank::world_size] if (text := manifest.damage(path, entry))]
        if rank == 0:
            found += manifest.foreign(path, entries)
    except CheckpointError as error:
        found = [str(error)]
    damaged = sorted({text for share in gather_objects(found) for text in share})
    if damaged:
        raise DamagedCheckpoint("\n".join(damaged))
    return sum(entry.num_bytes for entry in entries)


class _TensorReader(FileSystemReader):
    """DCP's reader, with an index that is not unpickled blindly."""

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        del args, kwargs
        metadata: Metadata = load_index(Path(self.path) / INDEX_FILE, resolve=_class_of)
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        for place in (metadata.storage_data or {}).values():
            if Path(place.relative_path).name != place.relative_path:
                raise CheckpointError(f"{self.path}: its index names a file outside: {place.relative_path}")
        return metadata


def _class_of(module: str, name: str) -> object:
    """A name that `tensor_index` has found harmless. Paths written by another Python's pathlib are this one's."""
    return getattr(importlib.import_module("pathlib" if module.startswith("pathlib") else module), name)


@contextmanager
def _nothing_left(part: Path, *, rank: int) -> Iterator[None]:
    """A save that fails gives its space back: on a full disk, the rest of the run needs it."""
    try:
        yield
    except BaseException:
        # A rank that failed for itself must not take the files away from others that still write: only rank 0 does.
        if rank == 0 and checkpoint_store.is_mine(part):
            checkpoint_store.release(part)
        raise


@contextmanager
def _alone_without_warning() -> Iterator[None]:
    """DCP warns that it takes one process for the whole group, also when `no_dist` has said so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield


@contextmanager
def _explained(path: Path, *, doing: str) -> Iterator[None]:
    """Turn what the disk, DCP or the data's order has to say into a CheckpointError."""
    try:
        yield
    except ConfigError as error:
        lines = "; ".join(f"{problem.key}={problem.value}, saved with {problem.allowed}" for problem in error.problems)
        raise CheckpointError(f"{path}: belongs to another run ({lines})") from error
    except CheckpointException as error:
        causes = "; ".join(f"rank {rank}: {cause[0]}" for rank, cause in sorted(error.failures.items()))
        raise CheckpointError(f"{path}: cannot be {doing}: {causes}") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be {doing}: {error.strerror or error}") from error
