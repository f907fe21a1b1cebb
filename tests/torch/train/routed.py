"""A mixture of experts as many write it: an expert that no row comes to is not run, so ranks use different ones.

Used by `rank_scenarios`; one process with the same rows is what ranks have to equal.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Loss(NamedTuple):
    loss: Tensor


class OwnOutput:
    """As an author writes it who knows nothing of torch's containers."""

    __slots__ = ("loss",)

    def __init__(self, loss: Tensor) -> None:
        self.loss = loss


class InNamespace(nn.Sequential):
    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(hidden=super().forward(x))


class Routed(nn.Module):
    """`experts_are_blocks`: the list of experts is the only list, so it is taken for the blocks. `upcast`: the head
    is fed in float32, as a cautious author does it. `own_dtype`: the head casts its own weights. `objects`: blocks and
    the model return objects that torch does not look into."""

    def __init__(
        self,
        *,
        experts_are_blocks: bool = False,
        upcast: bool = False,
        own_dtype: bool = False,
        objects: bool = False,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(32, 16)
        if not experts_are_blocks:
            self.blocks = nn.ModuleList(
                (InNamespace if objects else nn.Sequential)(nn.Linear(16, 16), nn.Tanh()) for _ in range(2)
            )  # the first of two equal lists
            self.never = nn.Linear(16, 2)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(16, 32)
        self.upcast = upcast or own_dtype
        self.own_dtype = own_dtype
        self.objects = objects

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        hidden = self.embed(input_ids)
        for block in getattr(self, "blocks", ()):
            added = block(hidden)
            hidden = hidden + (added.hidden if self.objects else added)
        mixed = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            rows = ((input_ids[:, 0] // 8) % 2 == number).nonzero()[:, 0]
            if len(rows):
                mixed = mixed.index_put((rows,), expert(hidden[rows]).to(mixed.dtype))
        hidden = hidden + mixed
        if self.own_dtype:
            self.head.to(torch.float32)
        logits = self.head(hidden.float() if self.upcast else hidden)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return OwnOutput(loss) if self.objects else Loss(loss)
