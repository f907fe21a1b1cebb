"""The half of `checkpoint` that writes: what is saved, aside and into a folder with its name. For both ways of saving.

In the order in which they are called, on every rank:

    prepare     an empty folder aside
    collect     what training changes from now on: tensors (live), and copies of scalars and random states
    (tensors)   by torch.distributed.checkpoint, at once or from a copy
    finish      the small files, the manifest, the name

`explained` and `nothing_left` go around all of it.
"""

from __future__ import annotations

import io
import pickle
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from pilotkit.errors import CheckpointError, ConfigError
from pilotkit.records import atomic, checkpoint_store, manifest
from pilotkit.records.pickles import refused_pickle
from pilotkit.train import scalars
from pilotkit.train.ranks import gather_objects
from pilotkit.train.seeding import random_state
from pilotkit.train.tensors import collect_tensors
from pilotkit.train.trainer import Trainer

SCALARS_FILE = "trainer.json"
NO_GROUP_WARNING = "torch.distributed is disabled"


@dataclass(frozen=True)
class Content:
    """All of one rank at one step. Only `tensors` are still the trainer's own."""

    rank: int
    tensors: dict[str, Tensor]
    random_state: dict[str, Any]
    scalars: dict[str, Any]
    about: dict[str, Any]


def prepare(path: Path, *, part: Path, rank: int) -> None:
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
    # torch's writer makes the folder on every node: each would keep its own share, and none of them a checkpoint.
    blind = sorted({host for host in gather_objects("" if part.is_dir() else socket.gethostname()) if host})
    if blind:
        raise CheckpointError(
            f"{path}: cannot be saved: {', '.join(blind)} does not see the folder that rank 0 made; a checkpoint of "
            "several nodes needs one folder that all of them share"
        )


def collect(trainer: Trainer, *, config_text: str, lock_text: str, eval_loss: float | None) -> Content:
    """Everything that a run needs to continue, as it is now. Raises CheckpointError in the middle of a step.

    Gradients are not saved, so those of the micro-batches before would be lost; and torch takes an optimizer that has
    gradients and no state yet for one that needs none (pytorch#140898).
    """
    groups = trainer.optimizer.param_groups
    num_pending = sum(param.grad is not None for group in groups for param in group["params"])
    if num_pending:
        raise CheckpointError(
            f"cannot be saved in the middle of a step: {num_pending} parameters have gradients that no step has used; "
            "save after the optimizer's step, with gradients cleared"
        )
    return Content(
        rank=trainer.rank,
        tensors=collect_tensors(trainer.model, trainer.optimizer),
        random_state=random_state(trainer.device),
        scalars=scalars.collect(trainer, config_text=config_text, lock_text=lock_text),
        about={"step": trainer.step, "world_size": trainer.world_size, "eval_loss": eval_loss},
    )


def finish(
    content: Content, written: list[manifest.Entry], *, path: Path, part: Path, group: dist.ProcessGroup | None = None
) -> int:
    """What belongs to the tensors that were `written`; then the name. Returns the bytes of all ranks."""
    rank = content.rank
    random_bytes = io.BytesIO()
    torch.save(content.random_state, random_bytes)
    own = [*written, manifest.write_file(random_file(part, rank), random_bytes.getvalue())]
    if rank == 0:
        own.append(manifest.write_file(part / SCALARS_FILE, atomic.to_json(content.scalars).encode()))
    shares: list[list[manifest.Entry]] = gather_objects(own, group=group)
    entries = sorted((entry for share in shares for entry in share), key=lambda entry: entry.name)
    if rank == 0:
        manifest.write(part, entries, about=content.about)
        checkpoint_store.publish_folder(part, path)
    gather_objects(None, group=group)
    return sum(entry.num_bytes for entry in entries)


def random_file(folder: Path, rank: int) -> Path:
    return folder / f"random-{rank}.pt"


def read_random_state(folder: Path, rank: int) -> dict[str, Any] | None:
    """The generators of a rank; None for one that was not there. Raises CheckpointError: nothing else is unpickled."""
    path = random_file(folder, rank)
    if not path.is_file():
        return None
    try:
        state = torch.load(path, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        refused = refused_pickle(path)
        raise CheckpointError(refused or f"{path}: cannot be read ({type(error).__name__})") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: holds no random states")
    return state


@contextmanager
def nothing_left(part: Path, *, rank: int) -> Iterator[None]:
    """A save that fails gives its space back: on a full disk, the rest of the run needs it."""
    try:
        yield
    except BaseException:
        # A rank that failed for itself must not take the files away from others that still write: only rank 0 does.
        if rank == 0 and checkpoint_store.is_mine(part):
            checkpoint_store.release(part)
        raise


@contextmanager
def alone_without_warning() -> Iterator[None]:
    """DCP warns that it takes one process for the whole group, also when `no_dist` has said so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=NO_GROUP_WARNING, category=UserWarning)
        yield


@contextmanager
def explained(path: Path, *, doing: str) -> Iterator[None]:
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
