"""Recompute activations in backward instead of keeping them. Called by the worker before sharding; once a model."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from pilotkit.errors import ConfigError, Problem

MODES = ("none", "full", "selective")


def apply(model: nn.Module, *, mode: str, blocks: nn.ModuleList | None) -> int:
    """Wrap every block in place; the number of wrapped blocks. Names in state dicts stay as they were.

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
    options: dict[str, Any] = {"checkpoint_impl": CheckpointImpl.NO_REENTRANT}
    if mode == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _keep_costly_results)
    for index, block in enumerate(blocks):
        blocks[index] = checkpoint_wrapper(block, **options)
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
