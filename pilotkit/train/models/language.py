"""What the built-in decoders share: their output, the next-token loss, and their initial weights."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch.nn.functional as F  # noqa: N812 - the field's usual name
from torch import Tensor, nn

from pilotkit.errors import ConfigError, Problem

IGNORE_INDEX = -100
INIT_STD = 0.02


class LanguageModelOutput(NamedTuple):
    """A NamedTuple, not a dataclass: FSDP and DDP look for tensors in outputs by torch's pytree, which knows tuples."""

    loss: Tensor | None
    """Scalar, float32; None without labels."""
    logits: Tensor
    """(micro_batch_size, seq_len, vocab_size)."""


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of token t+1 given tokens up to t; scalar in float32.

    `logits` (B, T, V), `labels` (B, T) as they are read, not shifted; -100 is left out of the mean.
    Shifting the labels, and not the logits, spares a copy of the largest tensor of the step.
    """
    shifted = F.pad(labels, (0, 1), value=IGNORE_INDEX)[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1).float(), shifted.flatten(), ignore_index=IGNORE_INDEX)


def check_seq_len(seq_len: int, *, max_seq_len: int) -> None:
    """Raises ConfigError when rows are longer than the model's positions."""
    if seq_len > max_seq_len:
        fix = f"shorten train.seq_len, or raise model.kwargs.max_seq_len={max_seq_len}"
        raise ConfigError(
            [Problem("train.seq_len", seq_len, f"at most {max_seq_len}", fix, ("model.kwargs.max_seq_len",))]
        )


def check_divides(key: str, value: int, *, by_key: str, by: int) -> None:
    """Raises ConfigError when `by` does not divide `value`; keys are below `model.kwargs`."""
    if value % by:
        fix = f"{by_key}={by} has to divide it; change one of the two"
        raise ConfigError(
            [Problem(f"model.kwargs.{key}", value, f"a multiple of {by}", fix, (f"model.kwargs.{by_key}",))]
        )


def init_weights(model: nn.Module, *, num_layers: int, residual_suffixes: tuple[str, ...]) -> None:
    """Normal with standard deviation 0.02; projections that end in a residual sum divided by sqrt(2 * num_layers).

    Radford et al. 2019 (GPT-2), section 2.3. Biases are zero.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            scale = 1 / math.sqrt(2 * num_layers) if name.endswith(residual_suffixes) else 1.0
            nn.init.normal_(module.weight, std=INIT_STD * scale)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=INIT_STD)
