"""Build torch's own optimizers by name, and torchao's of 8 bits. Holds no state.

Called by the worker once the model is parallelized.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from pilotkit.train import adamw8bit

IMPLEMENTATIONS: dict[str, dict[str, Any]] = {
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "for_loop": {"foreach": False},
}


def build_optimizer(
    params: Iterable[nn.Parameter],
    *,
    name: str,
    lr: float,
    betas: Sequence[float],
    eps: float,
    momentum: float,
    weight_decay: float,
    implementation: str,
    amsgrad: bool = False,
) -> torch.optim.Optimizer:
    """`adamw`, `adamw8bit` (decoupled weight decay), `adam` or `sgd` (L2) over the parameters that need gradients.

    `betas`, `eps` and `amsgrad` are Adam's, `momentum` is SGD's. `implementation`: foreach, fused or for_loop; of
    `adamw8bit`: compiled. Raises ConfigError where that one cannot be had.
    """
    first, second = betas
    adams: dict[str, Any] = {
        "lr": lr,
        "betas": (first, second),
        "eps": eps,
        "weight_decay": weight_decay,
        "amsgrad": amsgrad,
    }
    trainable = [param for param in params if param.requires_grad]
    if name == adamw8bit.NAME:
        assert implementation == adamw8bit.IMPLEMENTATION, implementation
        return adamw8bit.build(trainable, **adams)
    switch = IMPLEMENTATIONS[implementation]
    if name == "sgd":
        return torch.optim.SGD(trainable, lr=lr, momentum=momentum, weight_decay=weight_decay, **switch)
    assert name in ("adam", "adamw"), name
    adam = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
    return adam(trainable, **adams, **switch)
