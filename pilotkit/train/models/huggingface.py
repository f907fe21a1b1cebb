"""Any model of Hugging Face transformers that computes its own loss. Needs the `hf` extra, imported when it is called.

The worker points the hub's cache and offline switch by environment; nothing is set here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from pilotkit.errors import ConfigError, Problem

WEIGHT_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")


def build(
    *, name: str, revision: str | None, weights: str = "auto", auto_class: str = "AutoModelForCausalLM"
) -> nn.Module:
    """`name` is a hub id or a local folder; parameters come in float32, as every factory's do.

    `auto_class` is the head to train: any of transformers' AutoModelFor... classes, by its name (masked language
    models, sequence to sequence, image or audio classification, ...). The batches have to be those of that head.

    weights "auto": the pretrained weights, or random ones when `name` is a folder without any; "random": only
    the configuration is read. Raises ConfigError without transformers, and when the model cannot be found or read.
    """
    if weights not in ("auto", "random"):
        fix = "auto loads what there is, random reads only the configuration"
        raise ConfigError([Problem("model.kwargs.weights", weights, "auto, random", fix)])
    try:
        import transformers
    except ImportError as error:
        fix = f"pip install pilotkit[hf] (importing transformers failed: {error})"
        raise ConfigError([Problem("model.name", name, "a model that can be built here", fix)]) from error
    auto = getattr(transformers, auto_class, None)
    if not auto_class.startswith("AutoModelFor") or auto is None:
        allowed = "the name of a class AutoModelFor... that this transformers has"
        fix = "for example model.kwargs.auto_class=AutoModelForMaskedLM"
        raise ConfigError([Problem("model.kwargs.auto_class", auto_class, allowed, fix)])
    try:
        config = transformers.AutoConfig.from_pretrained(name, revision=revision)
        # Training keeps no cache of keys and values; one that grows also breaks recomputation in backward.
        config.use_cache = False
        # What the folder says of its dtype is how the weights lie there, not how they are to be trained.
        setattr(config, "dtype" if hasattr(config, "dtype") else "torch_dtype", torch.float32)
        model = _build(auto, config, name=name, revision=revision, weights=weights)
    except (OSError, ValueError) as error:
        fix = f"transformers says: {error}"
        raise ConfigError([Problem("model.name", name, "a hub id, or a local folder with config.json", fix)]) from error
    # from_pretrained may keep the checkpoint's dtype and leaves the model in eval mode. Nothing is converted that need
    # not be: a model that is only traced cannot be.
    floating = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return (model if floating <= {torch.float32} else model.float()).train()


def _build(auto: Any, config: Any, *, name: str, revision: str | None, weights: str) -> nn.Module:
    folder = Path(name)
    is_bare = folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in WEIGHT_PATTERNS)
    model: nn.Module = (
        auto.from_config(config)
        if weights == "random" or is_bare
        else auto.from_pretrained(name, revision=revision, config=config)
    )
    return model
