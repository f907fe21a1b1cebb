"""Build torch's own optimizers by name. Called by the worker once the model is parallelized; holds no state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
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
    """`adamw` (decoupled weight decay), `adam` (L2) or `sgd` (L2) over the parameters that need gradients.

    `betas`, `eps` and `amsgrad` are Adam's, `momentum` is SGD's. `implementation`: foreach, fused or for_loop.
    """
    trainable = [param for param in params if param.requires_grad]
    switch = IMPLEMENTATIONS[implementation]
    if name == "sgd":
        return torch.optim.SGD(trainable, lr=lr, momentum=momentum, weight_decay=weight_decay, **switch)
    assert name in ("adam", "adamw"), name
    adam = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
    first, second = betas
    return adam(trainable, lr=lr, betas=(first, second), eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, **switch)
