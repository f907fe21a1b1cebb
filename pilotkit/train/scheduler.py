"""Learning rate as a pure function of the number of finished steps. Called by the worker; the trainer advances it."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch.optim.lr_scheduler import LambdaLR


def lr_ratio(step: int, *, name: str, lr_warmup_steps: int, num_steps: int, min_lr_ratio: float) -> float:
    """Share of the full learning rate at `step` (0 is the first step).

    Warm-up is `(step + 1) / lr_warmup_steps`: it rises from zero, yet its first step already moves the weights.
    After it `constant`, `linear` down to min_lr_ratio at num_steps, or `cosine` (arXiv:1608.03983, equation 5).
    """
    if step < lr_warmup_steps:
        return (step + 1) / lr_warmup_steps
    if name == "constant":
        return 1.0
    progress = min(1.0, (step - lr_warmup_steps) / max(1, num_steps - lr_warmup_steps))
    assert name in ("linear", "cosine"), name
    remaining = 1.0 - progress if name == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return min_lr_ratio + (1.0 - min_lr_ratio) * remaining


def build_scheduler(
    optimizer: torch.optim.Optimizer, *, name: str, lr_warmup_steps: int, num_steps: int, min_lr_ratio: float
) -> LambdaLR:
    """`num_steps` is the length of the intended run in optimizer steps, never of a pilot.

    The lambda keeps nothing, so the scheduler's whole state is its step count.
    """
    shape = partial(
        lr_ratio, name=name, lr_warmup_steps=lr_warmup_steps, num_steps=num_steps, min_lr_ratio=min_lr_ratio
    )
    return LambdaLR(optimizer, shape)
