"""Any causal language model of Hugging Face transformers. Needs the `hf` extra; imports it only when it is called.

The worker points the hub's cache and offline switch by environment; nothing is set here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from pilotkit.errors import ConfigError, Problem

WEIGHT_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")


def build(*, name: str, revision: str | None, weights: str = "auto") -> nn.Module:
    """`name` is a hub id or a local folder; parameters come in float32, as every factory's do.

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
    try:
        config = transformers.AutoConfig.from_pretrained(name, revision=revision)
        # Training keeps no cache of keys and values; one that grows also breaks recomputation in backward.
        config.use_cache = False
        model = _build(transformers, config, name=name, revision=revision, weights=weights)
    except (OSError, ValueError) as error:
        fix = f"transformers says: {error}"
        raise ConfigError([Problem("model.name", name, "a hub id, or a local folder with config.json", fix)]) from error
    # from_pretrained may keep the checkpoint's dtype and leaves the model in eval mode.
    return model.float().train()


def _build(transformers: Any, config: Any, *, name: str, revision: str | None, weights: str) -> nn.Module:
    auto = transformers.AutoModelForCausalLM
    folder = Path(name)
    is_bare = folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in WEIGHT_PATTERNS)
    model: nn.Module = (
        auto.from_config(config)
        if weights == "random" or is_bare
        else auto.from_pretrained(name, revision=revision, config=config)
    )
    return model
