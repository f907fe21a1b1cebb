"""Float8 matrix products in the linear layers of a model's blocks, by torchao. Needs the `fp8` extra.

Called by the worker before the model is sharded; once a model. Weights, optimizer state and all that is no linear layer
of a block stay as they are: the embedding and the head are where float8 costs most. Never picks another precision: what
cannot be had is refused.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn

from pilotkit.errors import ConfigError, Problem

RECIPES = ("tensorwise", "rowwise")
OTHERS = "bf16_mixed, or another precision"
MULTIPLE = 16
"""torch._scaled_mm takes matrices whose both sizes are multiples of this."""


def convert(model: nn.Module, *, recipe: str, blocks: nn.ModuleList | None, emulate: bool) -> int:
    """Let linear layers of `blocks` multiply in float8; how many. Parameters keep their names, values and identity.

    `recipe` is torchao's: `tensorwise` scales a whole tensor by one number, `rowwise` each row by its own. `emulate`
    casts alike and multiplies in float32, on any device: for comparing, not for speed. Raises ConfigError without
    torchao, and for a model without blocks or without a layer whose sizes allow it.
    """
    assert recipe in RECIPES, recipe
    convert_layers, config_class, layer_class = _torchao()
    if blocks is None or len(blocks) == 0:
        fix = f"{type(model).__name__} has no nn.ModuleList of equal blocks; name one by model.blocks"
        raise ConfigError([Problem("precision", "fp8", OTHERS, fix, ("model.blocks",))])
    config = config_class.from_recipe_name(recipe)
    if emulate:
        config = dataclasses.replace(config, emulate=True)
    for block in blocks:
        convert_layers(block, module_filter_fn=_fits, config=config)
    num_converted = sum(isinstance(module, layer_class) for block in blocks for module in block.modules())
    if not num_converted:
        fix = f"no linear layer of its blocks has sizes that are multiples of {MULTIPLE}"
        raise ConfigError([Problem("precision", "fp8", f"{OTHERS} for this model", fix)])
    return num_converted


def _fits(module: nn.Module, _name: str) -> bool:
    return isinstance(module, nn.Linear) and not (module.in_features % MULTIPLE or module.out_features % MULTIPLE)


def _torchao() -> tuple[Any, Any, Any]:
    """What converts, what it is told, and what a converted layer is."""
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
        from torchao.float8.float8_linear import Float8Linear
    except ImportError as error:
        fix = f"pip install pilotkit[fp8] (importing torchao failed: {error})"
        raise ConfigError([Problem("precision", "fp8", OTHERS, fix)]) from error
    return convert_to_float8_training, Float8LinearConfig, Float8Linear
