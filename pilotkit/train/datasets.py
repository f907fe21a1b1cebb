"""Factories of built-in data sets: rows of `seq_len` tokens as `{"input_ids", "labels"}`, both (seq_len,) int64.

Called by the worker through `data.factory`, once for each split. Text is read as bytes (256 tokens).
Files are those of `pilotkit.stdlib_text`, so that the lock digests exactly what is read here.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from pilotkit.errors import ConfigError, PilotkitError, Problem
from pilotkit.splits import split_sizes
from pilotkit.stdlib_text import stdlib_files, text_files
from pilotkit.train.rows import RowSource
from pilotkit.train.seeding import derive_seed

SPLITS = ("train", "eval")


class DataChangedError(PilotkitError):
    """A file is shorter than it was when its rows were counted."""


def stdlib(*, split: str, seq_len: int, seed: int) -> RowSource:
    """The source text of this Python's standard library. `seed` has no say: rows are drawn in `rows.RowStream`."""
    del seed
    return _text_rows(stdlib_files(), split=split, seq_len=seq_len, key="train.seq_len", value=seq_len)


def text_folder(*, split: str, seq_len: int, seed: int, path: str, pattern: str) -> RowSource:
    """The text of one file, or of all files below a folder whose names match `pattern`, one after the other.

    Raises ConfigError when nothing matches, or the text is too short for one row of each split.
    """
    del seed
    files = text_files(path, pattern=pattern)
    return _text_rows(files, split=split, seq_len=seq_len, key="data.path", value=path)


def synthetic(*, split: str, seq_len: int, seed: int, vocab_size: int, num_rows: int) -> RowSource:
    """Uniform random tokens below `vocab_size`; row i is always the same for one seed, and nothing is stored."""
    rows = split_rows(num_rows, split=split, key="data.kwargs.num_rows", value=num_rows)
    return SyntheticRows(rows, seq_len=seq_len, seed=seed, vocab_size=vocab_size)


def huggingface(
    *,
    split: str,
    seq_len: int,
    seed: int,
    name: str,
    revision: str | None,
    text_column: str,
    tokenizer: str | None,
    tokenizer_revision: str | None = None,
) -> RowSource:
    """A text column of a Hugging Face data set. Needs the `hf` extra; see `pilotkit.train.datasets_hf`."""
    del seed
    from pilotkit.train.datasets_hf import load_rows  # the extra is only asked for when it is used

    return load_rows(
        split=split,
        seq_len=seq_len,
        name=name,
        revision=revision,
        text_column=text_column,
        tokenizer=tokenizer,
        tokenizer_revision=tokenizer_revision,
    )


def split_rows(num_rows: int, *, split: str, key: str, value: object) -> range:
    """Rows of one split: the last 5 % (at least one) are `eval`, those before are `train`.

    Raises ConfigError on `key` when there are not two rows.
    """
    assert split in SPLITS, split
    if num_rows < 2:
        fix = f"there are {num_rows} rows of train.seq_len tokens; give more data or shorter rows"
        raise ConfigError(
            [Problem(key, value, "at least one row to train on and one to evaluate", fix, ("train.seq_len",))]
        )
    num_train = split_sizes(num_rows)["train"]
    return range(num_train) if split == "train" else range(num_train, num_rows)


class TextRows:
    """Consecutive windows of `seq_len` bytes over files laid end to end; the tail that fills no row is left out.

    Only sizes are kept. A row is read when it is asked for, so a corpus of any size opens at once.
    """

    def __init__(self, files: Sequence[Path], *, ends: Sequence[int], rows: range, seq_len: int) -> None:
        """`ends[i]` is the offset in the whole text at which file i ends, bytes."""
        self._files = files
        self._ends = ends
        self._rows = rows
        self._seq_len = seq_len

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> dict[str, Tensor]:
        start = self._rows[index] * self._seq_len
        text = bytearray().join(self._pieces(start, start + self._seq_len))
        tokens = torch.frombuffer(text, dtype=torch.uint8).to(torch.int64)
        return {"input_ids": tokens, "labels": tokens}

    def _pieces(self, start: int, end: int) -> Iterator[bytes]:
        number = bisect_right(self._ends, start)
        while start < end:
            begin = self._ends[number - 1] if number else 0
            length = min(end, self._ends[number]) - start
            if length:
                yield _read(self._files[number], offset=start - begin, length=length)
            start += length
            number += 1


def _read(path: Path, *, offset: int, length: int) -> bytes:
    with open(path, "rb", buffering=0) as stream:
        piece = os.pread(stream.fileno(), length, offset)
    if len(piece) != length:
        raise DataChangedError(
            f"{path}: shorter than when this run counted its rows; do not change data while it is read"
        )
    return piece


def _text_rows(files: Sequence[Path], *, split: str, seq_len: int, key: str, value: object) -> TextRows:
    ends = list(accumulate(path.stat().st_size for path in files))
    rows = split_rows((ends[-1] if ends else 0) // seq_len, split=split, key=key, value=value)
    return TextRows(files, ends=ends, rows=rows, seq_len=seq_len)


class SyntheticRows:
    """Random tokens from a generator that is seeded by seed and row."""

    def __init__(self, rows: range, *, seq_len: int, seed: int, vocab_size: int) -> None:
        self._rows = rows
        self._seq_len = seq_len
        self._seed = seed
        self._vocab_size = vocab_size

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(derive_seed(self._seed, "synthetic", self._rows[index]))
        tokens = torch.randint(self._vocab_size, (self._seq_len,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}
