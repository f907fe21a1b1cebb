"""What the built-in decoders share: their output, the next-token loss (whole or in chunks), and initial weights."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch.nn.functional as F  # noqa: N812 - the field's usual name
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pilotkit.errors import ConfigError, Problem

IGNORE_INDEX = -100
INIT_STD = 0.02
LOSS_CHUNKS = (1, 2, 4, 8, 16, 32)


class LanguageModelOutput(NamedTuple):
    """A NamedTuple, not a dataclass: FSDP and DDP look for tensors in outputs by torch's pytree, which knows tuples."""

    loss: Tensor | None
    """Scalar, float32; None without labels."""
    logits: Tensor | None
    """(micro_batch_size, seq_len, vocab_size); None where the loss was computed in chunks."""


def output_of(head: nn.Module, x_btc: Tensor, labels: Tensor | None, *, loss_chunks: int) -> LanguageModelOutput:
    """What a decoder returns, from the last hidden states (B, T, C).

    With several `loss_chunks` the logits of a step are never there as a whole: each chunk of tokens goes through the
    head by itself, and once more in backward.
    """
    if labels is not None and loss_chunks > 1:
        return LanguageModelOutput(_chunked_loss(head, x_btc, labels, num_chunks=loss_chunks), None)
    logits = head(x_btc)
    return LanguageModelOutput(None if labels is None else next_token_loss(logits, labels), logits)


def _chunked_loss(head: nn.Module, x_btc: Tensor, labels: Tensor, *, num_chunks: int) -> Tensor:
    """The same mean as `next_token_loss`, added up in another order."""
    targets = _shifted(labels)
    total: Any = 0.0
    for x, target in zip(x_btc.flatten(0, 1).chunk(num_chunks), targets.chunk(num_chunks), strict=True):
        total = total + checkpoint(_summed_loss, head, x, target, use_reentrant=False, preserve_rng_state=False)
    mean: Tensor = total / (targets != IGNORE_INDEX).sum()
    return mean


def _summed_loss(head: nn.Module, x: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(head(x).float(), targets, ignore_index=IGNORE_INDEX, reduction="sum")


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of token t+1 given tokens up to t; scalar in float32.

    `logits` (B, T, V), `labels` (B, T) as they are read, not shifted; -100 is left out of the mean.
    Shifting the labels, and not the logits, spares a copy of the largest tensor of the step.
    """
    return F.cross_entropy(logits.flatten(0, 1).float(), _shifted(labels), ignore_index=IGNORE_INDEX)


def _shifted(labels: Tensor) -> Tensor:
    return F.pad(labels, (0, 1), value=IGNORE_INDEX)[:, 1:].flatten()


def check_loss_chunks(loss_chunks: int) -> None:
    """Raises ConfigError for a number that does not cut rows evenly: a grid of shapes is fitted to even chunks."""
    if loss_chunks not in LOSS_CHUNKS:
        fix = "1 computes the loss at once, 8 holds an eighth of the logits"
        allowed = ", ".join(map(str, LOSS_CHUNKS))
        raise ConfigError([Problem("model.kwargs.loss_chunks", loss_chunks, allowed, fix)])


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
