"""The few collectives that training itself needs, also right without a process group (one process, world size 1).

Called by the trainer, the checkpoint and parallelism. Never starts or ends a process group; the worker does.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor


def has_group() -> bool:
    """Whether a process group is running."""
    return dist.is_available() and dist.is_initialized()


def rank_and_world_size() -> tuple[int, int]:
    """This process and how many there are; (0, 1) without a group."""
    return (dist.get_rank(), dist.get_world_size()) if has_group() else (0, 1)


def can_differ(model: nn.Module) -> bool:
    """Whether ranks of their own may find different things in `model`: one that is only traced has nobody to ask."""
    if rank_and_world_size()[1] == 1:
        return False
    tensors = (*model.parameters(), *model.buffers())
    return not any(isinstance(t._local_tensor if isinstance(t, DTensor) else t, FakeTensor) for t in tensors)


def gather_scalar(value: Tensor) -> Tensor:
    """One scalar of every rank, as (world_size,), on every rank. A collective: every rank has to call it."""
    if not has_group():
        return value.reshape(1)
    # The list form: torch 2.13 deprecates the name of the other one, and 2.6 does not know its new name.
    gathered = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, value)
    return torch.stack(gathered)


def gather_objects(value: Any, *, group: dist.ProcessGroup | None = None) -> list[Any]:
    """One plain object of every rank, in the order of ranks, on every rank. A collective, of the default group."""
    if not has_group():
        return [value]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value, group=group)
    return gathered


def synchronize_ranks() -> None:
    """Wait until every rank is here."""
    # An object gather and not a barrier: NCCL's barrier warns when it has to guess the device.
    gather_objects(None)
