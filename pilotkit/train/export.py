"""Weights for readers that know nothing of us: safetensors with the names of the plain model. Called by `restore`.

    <folder>/
        model.safetensors        every tensor of the model, whole, a tied one once
        evaluation.safetensors   one evaluation batch of rank 0
        export.json              dtype, shape and sha256 of each tensor, what is tied to what, the loss on that batch
        config.json              only for a Hugging Face model: what its plain class is built from

All ranks have to call `export`, as shards are gathered one tensor at a time; rank 0 writes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from pilotkit.errors import ConfigError, Problem
from pilotkit.records import atomic
from pilotkit.train.ranks import synchronize_ranks
from pilotkit.train.tensors import collect_tensors, plain_name
from pilotkit.train.trainer import Trainer

WEIGHTS_FILE = "model.safetensors"
EVALUATION_FILE = "evaluation.safetensors"
DESCRIPTION_FILE = "export.json"


def export(trainer: Trainer, folder: Path) -> None:
    """Write the model's weights and one evaluation batch with its loss. Raises ConfigError without safetensors."""
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        fix = "pip install pilotkit[hf], or leave restore.export=false"
        raise ConfigError([Problem("restore.export", True, "false where safetensors is missing", fix)]) from error
    tied = tied_names(trainer.model)
    weights = {}
    for name, tensor in collect_tensors(trainer.model, trainer.optimizer).items():
        owner, _, plain = name.partition(".")
        if owner != "model" or plain in tied:
            continue
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if trainer.rank == 0:
            weights[plain] = whole.detach().cpu().contiguous().clone()
    batch, loss = trainer.evaluate_first_batch()
    if trainer.rank == 0:
        folder.mkdir(parents=True)
        save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        save_file({name: tensor.cpu().contiguous() for name, tensor in batch.items()}, folder / EVALUATION_FILE)
        description = {
            "tensors": {name: _describe(tensor) for name, tensor in sorted(weights.items())},
            "tied": tied,
            "loss": loss,
        }
        atomic.write_json(folder / DESCRIPTION_FILE, description)
        _write_config(trainer.model, folder)
    synchronize_ranks()


def tied_names(model: nn.Module) -> dict[str, str]:
    """Further names of a parameter, each with its first one."""
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        kept = first.setdefault(id(parameter), plain_name(name))
        if kept != plain_name(name):
            tied[plain_name(name)] = kept
    return tied


def _describe(tensor: Tensor) -> dict[str, Any]:
    content = tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else b""
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _write_config(model: nn.Module, folder: Path) -> None:
    """What Hugging Face's own class is built from; other models have no such thing."""
    plain: Any = model
    while hasattr(plain, "module") or hasattr(plain, "_orig_mod"):
        plain = getattr(plain, "module", None) or plain._orig_mod
    config: Any = getattr(plain, "config", None)
    if hasattr(config, "save_pretrained"):
        config.save_pretrained(folder)
