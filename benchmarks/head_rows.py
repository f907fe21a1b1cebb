"""Rows for the heads of Hugging Face models, as a user writes them for `data=custom`: random, of the right shapes. And
`mixed_parts`, a `model.factory` of parts that libraries for training like to stumble over.

`architectures.py` copies this file into the folder that it starts pilotkit in. Each function is a `data.factory`:
called with `split`, `seq_len`, `seed` and what `data.kwargs` says, it returns a map-style data set of tensors by name.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

NUM_ROWS = 256
IGNORED = -100  # the label that every loss of transformers leaves out
Row = dict[str, Tensor]


class Drawn:
    """Row i is drawn under a seed of its own, so it is the same whoever reads it; evaluation has rows of its own."""

    def __init__(self, draw: Callable[[torch.Generator], Row], *, split: str, seed: int) -> None:
        self._draw = draw
        self._start = 2 * seed * NUM_ROWS + (NUM_ROWS if split == "eval" else 0)

    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, index: int) -> Row:
        return self._draw(torch.Generator().manual_seed(self._start + index))


def masked(*, split: str, seq_len: int, seed: int, vocab_size: int) -> Drawn:
    """Tokens of which one in seven is hidden behind token 0 and asked for."""

    def draw(generator: torch.Generator) -> Row:
        tokens = _tokens(generator, seq_len, vocab_size)
        hidden = torch.arange(seq_len) % 7 == 0
        labels = torch.where(hidden, tokens, IGNORED)
        return {"input_ids": tokens.masked_fill(hidden, 0), "labels": labels}

    return Drawn(draw, split=split, seed=seed)


def translated(*, split: str, seq_len: int, seed: int, vocab_size: int) -> Drawn:
    """A sequence in, another one out: for encoder-decoders."""

    def draw(generator: torch.Generator) -> Row:
        return {
            "input_ids": _tokens(generator, seq_len, vocab_size),
            "attention_mask": torch.ones(seq_len, dtype=torch.int64),
            "labels": _tokens(generator, seq_len // 2, vocab_size),
        }

    return Drawn(draw, split=split, seed=seed)


def images(*, split: str, seq_len: int, seed: int, size: int, num_labels: int) -> Drawn:
    """Pictures of three channels and a class each. What `train.seq_len` counts is up to the user: patches, here."""
    del seq_len

    def draw(generator: torch.Generator) -> Row:
        label = torch.randint(num_labels, (), generator=generator)
        return {"pixel_values": torch.randn(3, size, size, generator=generator), "labels": label}

    return Drawn(draw, split=split, seed=seed)


def waves(*, split: str, seq_len: int, seed: int, num_samples: int, vocab_size: int, num_labels: int) -> Drawn:
    """Sound as samples, and its transcript: for models with a CTC head. `vocab_size` 0: a class instead."""
    del seq_len

    def draw(generator: torch.Generator) -> Row:
        wave = torch.randn(num_samples, generator=generator)
        if vocab_size:
            return {"input_values": wave, "labels": _tokens(generator, num_labels, vocab_size)}
        return {"input_values": wave, "labels": torch.randint(num_labels, (), generator=generator)}

    return Drawn(draw, split=split, seed=seed)


def spectra(*, split: str, seq_len: int, seed: int, num_bins: int, num_frames: int, vocab_size: int) -> Drawn:
    """Sound as a log-mel spectrogram, and its transcript."""

    def draw(generator: torch.Generator) -> Row:
        spectrum = torch.randn(num_bins, num_frames, generator=generator)
        return {"input_features": spectrum, "labels": _tokens(generator, seq_len, vocab_size)}

    return Drawn(draw, split=split, seed=seed)


def _tokens(generator: torch.Generator, count: int, vocab_size: int) -> Tensor:
    """None of the first four, which are special in most vocabularies."""
    return torch.randint(4, vocab_size, (count,), generator=generator)


class MixedParts(nn.Module):
    """Returns an object that torch does not look into, too."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        width = 32
        self.embed = nn.Embedding(vocab_size, width)
        self.recurrent = nn.LSTM(width, width, batch_first=True)
        self.normed = weight_norm(nn.Linear(width, width))
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.temperature = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(width, vocab_size)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        hidden = self.normed(self.recurrent(self.embed(input_ids))[0])
        hidden = hidden + self.attention(hidden, hidden, hidden, need_weights=False)[0]
        logits = self.head(self.frozen(hidden)) / self.temperature
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return SimpleNamespace(loss=loss, logits=logits)


def mixed_parts(vocab_size: int) -> nn.Module:
    return MixedParts(vocab_size)
