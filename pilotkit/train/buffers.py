"""Buffers that training writes into, such as the running statistics of batch norm: rank 0's on every rank.

Each rank updates them from its own rows, so they drift apart; a checkpoint holds one copy. DDP sends rank 0's before
the next forward and fully_shard never does. Called by the trainer at the end of a step: what is saved, evaluated and
continued is then the same on every rank, whatever the strategy.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pilotkit.train.ranks import can_differ, gather_objects


class MovingBuffers:
    """Finds in the first step which buffers of `model` move on any rank, and keeps those alike. Every rank has one."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._names: list[str] | None = None
        self._before: dict[str, Tensor] = {}
        buffers = dict(model.named_buffers())
        if can_differ(model):
            self._before = {name: buffer.detach().clone() for name, buffer in buffers.items()}

    @torch.no_grad()
    def agree(self) -> None:
        """Take rank 0's. A collective on every rank, one message a dtype; nothing where no buffer moves."""
        if self._names is None:
            self._names = self._find()
        if not self._names:
            return
        buffers = dict(self._model.named_buffers())
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for name in self._names:
            by_dtype.setdefault(buffers[name].dtype, []).append(buffers[name])
        for same in by_dtype.values():
            sent = torch.cat([buffer.reshape(-1) for buffer in same])
            dist.broadcast(sent, src=0)
            for buffer, part in zip(same, sent.split([buffer.numel() for buffer in same]), strict=True):
                buffer.copy_(part.view_as(buffer))

    def _find(self) -> list[str]:
        if not self._before:
            return []
        now = dict(self._model.named_buffers())
        here = [name for name, old in self._before.items() if not torch.equal(now[name], old.to(now[name].device))]
        self._before = {}
        everywhere = {name for names in gather_objects(here) for name in names}
        return sorted(everywhere)
