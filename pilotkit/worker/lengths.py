"""How long the rows of the data really are: the longest decide memory, and `measure` steps on those.

Called before anything is timed. Reads rows in the order of the first epoch until it has enough; changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from pilotkit.train.rows import RowOrder, RowSource, read_rows

MAX_ROWS = 1024
MIN_ROWS = 16


@dataclass(frozen=True)
class RowLengths:
    """What the rows that were looked at hold, in tokens: padding is left out where an `attention_mask` tells it."""

    num_rows: int
    """How many rows were looked at."""
    longest: int
    mean: float
    full_share: float
    """Share of them that reaches `train.seq_len`, 0 to 1."""
    longest_rows: tuple[int, ...]
    """Numbers of the rows with the longest tensors. Empty where all are equally long, padding included."""

    def metrics(self) -> dict[str, float]:
        """The figures as a record holds them."""
        return {
            "num_rows_looked_at": float(self.num_rows),
            "longest_row_tokens": float(self.longest),
            "mean_row_tokens": self.mean,
            "full_rows_share": self.full_share,
        }


def look_at_lengths(rows: RowSource, *, seq_len: int, seed: int, seconds: float) -> RowLengths | None:
    """Look at rows in the order of the first epoch, for `seconds` at the most, but at MIN_ROWS of them.

    None for rows that are no sequences of tokens (no `input_ids`, no `attention_mask`): pictures have no length.
    """
    order = RowOrder(len(rows), seed=seed)
    found: list[tuple[int, int, int]] = []  # tokens, width of the tensor, row
    started = time.monotonic()
    for position in range(min(len(rows), MAX_ROWS)):
        if position >= MIN_ROWS and time.monotonic() - started > seconds:
            break
        row = order.row_at(position)
        # Read as a batch of one, as a draw of the data set's own must not move the generators of training.
        measured = _length(read_rows(rows, [row]))
        if measured is None:
            return None
        found.append((*measured, row))
    tokens = [length for length, _, _ in found]
    widths = [width for _, width, _ in found]
    widest = [row for _, width, row in found if width == max(widths)] if min(widths) < max(widths) else []
    full = sum(length >= seq_len for length in tokens) / len(tokens)
    return RowLengths(len(found), max(tokens), sum(tokens) / len(tokens), full, tuple(widest))


def _length(batch: Mapping[str, Tensor]) -> tuple[int, int] | None:
    """Tokens of a batch of one row without its padding, and with it."""
    mask, tokens = batch.get("attention_mask"), batch.get("input_ids")
    if mask is not None and mask.dim() == 2:
        return int((mask != 0).sum()), mask.shape[1]
    if tokens is not None and tokens.dim() == 2:
        return tokens.shape[1], tokens.shape[1]
    return None


class ChosenRows:
    """Some rows of a data set, as a data set."""

    def __init__(self, rows: RowSource, chosen: tuple[int, ...]) -> None:
        self._rows = rows
        self._chosen = chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int, /) -> Mapping[str, Tensor]:
        return self._rows[self._chosen[index]]
