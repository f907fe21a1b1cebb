"""Recompute activations in backward instead of keeping them. Called by the worker before sharding; once a model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from pilotkit.errors import ConfigError, Problem

MODES = ("none", "full", "selective")


def apply(model: nn.Module, *, mode: str, blocks: nn.ModuleList | None, keep_every: int = 1) -> int:
    """Make every block recompute; the number of blocks. The forward is replaced and no module is wrapped around a
    block, so parameters, state dicts and types keep their names.

    `none` keeps all activations; `full` keeps only the input of each block; `selective` keeps the results of matrix
    products and attention too, of matrix products every `keep_every`-th from the first on. Raises ConfigError when
    there are no blocks: wrapping nothing would look like success.
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
        options["context_fn"] = partial(_selective_contexts, keep_every)
    run = checkpoint if mode == "full" else _checkpoint_with_casts
    for block in blocks:
        cast(Any, block).forward = partial(run, block.forward, **options)
    return len(blocks)


def _checkpoint_with_casts(forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Without autocast's memory of cast weights: a block that is used twice would cast in its first forward and
    not in its second, and backward recomputes the second first. Torch wants the same operators both times."""
    was_enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        return checkpoint(forward, *args, **options)
    finally:
        torch.set_autocast_cache_enabled(was_enabled)


@functools.cache
def _matrix_products() -> frozenset[Any]:
    aten = torch.ops.aten
    return frozenset(
        {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten._scaled_mm.default}
    )


@functools.cache
def _costly_operators() -> frozenset[Any]:
    """Matrix products and attention kernels: most of the arithmetic of a block, a small part of its memory."""
    aten = torch.ops.aten
    return _matrix_products() | frozenset(
        {
            aten._scaled_dot_product_flash_attention.default,
            aten._scaled_dot_product_flash_attention_for_cpu.default,
            aten._scaled_dot_product_efficient_attention.default,
            aten._scaled_dot_product_cudnn_attention.default,
        }
    )


def _selective_contexts(keep_every: int) -> Any:
    """Contexts of one block's forward and recomputation, each of which counts its matrix products from the first."""
    counts = {False: 0, True: 0}
    costly = _costly_operators()

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        """torch's policy function: called for every operator, in forward and again in recomputation."""
        del args, kwargs
        kept = operator in costly
        if operator in _matrix_products():
            kept = counts[context.is_recompute] % keep_every == 0
            counts[context.is_recompute] += 1
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
