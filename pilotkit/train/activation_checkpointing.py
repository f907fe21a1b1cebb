"""Recompute activations in backward instead of keeping them. Called by the worker before sharding; once a model."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from pilotkit.errors import ConfigError, Problem

MODES = ("none", "full", "selective")


def apply(model: nn.Module, *, mode: str, blocks: nn.ModuleList | None) -> int:
    """Make every block recompute; the number of blocks. The forward is replaced and no module is wrapped around a
    block, so parameters, state dicts and types keep their names.

    `none` keeps all activations; `full` keeps only the input of each block; `selective` keeps the results of matrix
    products and attention too. Raises ConfigError when there are no blocks: wrapping nothing would look like success.
    """
    assert mode in MODES, mode
    if mode == "none":
        return 0
    if blocks is None or len(blocks) == 0:
        fix = f"{type(model).__name__} has no nn.ModuleList of equal blocks; name one by model.blocks, or use none"
        raise ConfigError(
            [Problem("activation_checkpointing.mode", mode, "none for this model", fix, ("model.blocks",))]
        )
    options: dict[str, Any] = {"use_reentrant": False}
    if mode == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _keep_costly_results)
    for block in blocks:
        cast(Any, block).forward = partial(checkpoint, block.forward, **options)
    return len(blocks)


def _costly_operators() -> frozenset[Any]:
    """Matrix products and attention kernels: most of the arithmetic of a block, a small part of its memory."""
    aten = torch.ops.aten
    return frozenset(
        {
            aten.mm.default,
            aten.addmm.default,
            aten.bmm.default,
            aten.baddbmm.default,
            aten._scaled_dot_product_flash_attention.default,
            aten._scaled_dot_product_flash_attention_for_cpu.default,
            aten._scaled_dot_product_efficient_attention.default,
            aten._scaled_dot_product_cudnn_attention.default,
            aten._scaled_mm.default,
        }
    )


def _keep_costly_results(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """torch's policy function: called for every operator, in forward and again in recomputation."""
    del context, args, kwargs
    return CheckpointPolicy.MUST_SAVE if operator in _costly_operators() else CheckpointPolicy.PREFER_RECOMPUTE
