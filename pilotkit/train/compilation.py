"""Compile a model with torch.compile: as a whole, or each of its blocks by itself. Called by the worker after sharding,
and by `estimate` with a backend of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from pilotkit.errors import ConfigError, Problem


def compile_model(model: nn.Module, *, scope: str, blocks: nn.ModuleList | None, **options: Any) -> None:
    """In place; `options` are torch.compile's. `scope` is `model`, or `blocks`: regional compilation.

    Of a block its forward is compiled and not its call: hooks of sharding stay outside, and so one graph serves all
    blocks. Raises ConfigError where there are no blocks: compiling nothing would look like success.
    """
    if scope == "model":
        model.compile(**options)
        return
    if blocks is None or len(blocks) == 0:
        fix = (
            f"{type(model).__name__} has no nn.ModuleList of equal blocks; name one by model.blocks, or compile it all"
        )
        raise ConfigError([Problem("train.compile_scope", scope, "model for this model", fix, ("model.blocks",))])
    for block in blocks:
        each: Any = block
        each.forward = torch.compile(each.forward, **options)
