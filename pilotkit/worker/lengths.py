"""How long the rows of the data really are: the longest decide memory, and what is measured steps on those.

Called before anything is timed, on every rank. Rank 0 looks once for the whole run, whose phases and attempts then step
on the same rows. Reads rows in the order of the first epoch until it has enough; changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from torch import Tensor

from pilotkit.records import atomic
from pilotkit.records.run_dir import RunDir
from pilotkit.train.rows import RowOrder, RowSource, read_rows
from pilotkit.worker.session import Session

MIN_ROWS = 16
ENOUGH_ROWS = 1024
"""After so many the look goes on only while none has reached `train.seq_len`: the longest may come last."""


@dataclass(frozen=True)
class RowLengths:
    """What the rows that were looked at hold, in tokens: padding is left out where an `attention_mask` tells it.

    The three figures of tokens are None for rows that are no sequences of them: pictures, sound.
    """

    num_rows: int
    """How many rows were looked at."""
    num_in_all: int
    """How many there are."""
    longest: int | None
    mean: float | None
    full_share: float | None
    """Share of those looked at that reaches `train.seq_len`, 0 to 1."""
    longest_rows: tuple[int, ...]
    """Numbers of the rows whose tensors take most bytes, all of them together: a short question may have a long
    answer. Empty where all rows take as many, padding included."""

    def metrics(self) -> dict[str, float]:
        """The figures as a record holds them."""
        if self.longest is None or self.mean is None or self.full_share is None:
            return {}
        return {
            "num_rows": float(self.num_in_all),
            "num_rows_looked_at": float(self.num_rows),
            "longest_row_tokens": float(self.longest),
            "mean_row_tokens": self.mean,
            "full_rows_share": self.full_share,
        }


def lengths_of_run(session: Session, splits: Mapping[str, RowSource]) -> dict[str, RowLengths]:
    """By split, the same on every rank and in every phase of this run. A collective: every rank has to call it."""
    here = _kept(session) or _look(session, splits) if session.rank == 0 else None
    return cast("dict[str, RowLengths]", session.gather(here)[0])


def _kept(session: Session) -> dict[str, RowLengths] | None:
    """What an earlier phase or attempt of this run saw, or the run that is run again: a look ends by the clock."""
    again = session.config.replay.rows_of
    for folder in (session.run_dir, *([] if again is None else [RunDir(Path(again))])):
        with contextlib.suppress(FileNotFoundError):
            found = json.loads(folder.row_lengths.read_text(encoding="utf-8"))
            return {
                split: RowLengths(**{**it, "longest_rows": tuple(it["longest_rows"])}) for split, it in found.items()
            }
    return None


def _look(session: Session, splits: Mapping[str, RowSource]) -> dict[str, RowLengths]:
    train, seconds = session.config.train, session.config.measure.loader_seconds
    found = {
        split: look_at_lengths(rows, seq_len=train.seq_len, seed=train.seed, seconds=seconds)
        for split, rows in splits.items()
    }
    atomic.write_json(session.run_dir.row_lengths, {split: asdict(lengths) for split, lengths in found.items()})
    return found


def look_at_lengths(rows: RowSource, *, seq_len: int, seed: int, seconds: float) -> RowLengths:
    """Look at rows in the order of the first epoch, for `seconds` at the most, but at MIN_ROWS of them."""
    order = RowOrder(len(rows), seed=seed)
    tokens: list[int] = []
    sizes: list[tuple[int, int]] = []  # bytes, row
    started = time.monotonic()
    for position in range(len(rows)):
        if position >= MIN_ROWS and time.monotonic() - started > seconds:
            break
        if position >= ENOUGH_ROWS and max(tokens, default=seq_len) >= seq_len:
            break
        row = order.row_at(position)
        # Read as a batch of one, as a draw of the data set's own must not move the generators of training.
        batch = read_rows(rows, [row])
        sizes.append((sum(tensor.nbytes for tensor in batch.values()), row))
        length = _num_tokens(batch)
        tokens += [] if length is None else [length]
    longest_rows = _largest(sizes)
    if not tokens:
        return RowLengths(len(sizes), len(rows), None, None, None, longest_rows)
    full = sum(length >= seq_len for length in tokens) / len(tokens)
    return RowLengths(len(sizes), len(rows), max(tokens), sum(tokens) / len(tokens), full, longest_rows)


def _largest(sizes: list[tuple[int, int]]) -> tuple[int, ...]:
    most, least = max(sizes, default=(0, 0))[0], min(sizes, default=(0, 0))[0]
    return tuple(row for size, row in sizes if size == most) if least < most else ()


def _num_tokens(batch: Mapping[str, Tensor]) -> int | None:
    """Of a batch of one row, without its padding; None where it has neither a mask nor tokens."""
    mask, tokens = batch.get("attention_mask"), batch.get("input_ids")
    if mask is not None and mask.dim() == 2:
        return int((mask != 0).sum())
    return tokens.shape[1] if tokens is not None and tokens.dim() == 2 else None


class ChosenRows:
    """Some rows of a data set, as a data set."""

    def __init__(self, rows: RowSource, chosen: tuple[int, ...]) -> None:
        self._rows = rows
        self._chosen = chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int, /) -> Mapping[str, Tensor]:
        return self._rows[self._chosen[index]]
