"""Rows from a text column of a Hugging Face data set. Called by `datasets.huggingface`; needs the `hf` extra.

Tokenizing and cutting into rows go through `datasets.map`, whose cache makes the second start quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pilotkit.errors import ConfigError, Problem
from pilotkit.train.datasets import split_rows
from pilotkit.train.rows import RowSource

TRAIN = "train"


def load_rows(
    *,
    split: str,
    seq_len: int,
    name: str,
    revision: str | None,
    text_column: str,
    tokenizer: str | None,
    tokenizer_revision: str | None = None,
) -> RowSource:
    """`name` is a hub id, a folder of files, or a folder written by `save_to_disk`; its `train` part is used.

    `tokenizer` is a hub id at `tokenizer_revision`, or a folder; None reads the text as bytes. Raises ConfigError
    without the extra, and when the data set, the column or the tokenizer cannot be found.
    """
    try:
        import datasets
    except ImportError as error:
        fix = f"pip install pilotkit[hf] (importing datasets failed: {error})"
        raise ConfigError([Problem("data.name", name, "a data set that can be read here", fix)]) from error
    table = _load_table(datasets, name=name, revision=revision)
    if text_column not in table.column_names:
        allowed = f"a column of {name}: {', '.join(table.column_names)}"
        raise ConfigError([Problem("data.kwargs.text_column", text_column, allowed, "name one of these")])
    encode = None if tokenizer is None else _load_tokenizer(tokenizer, tokenizer_revision)
    cut = partial(_cut_into_rows, seq_len=seq_len, text_column=text_column, tokenizer=encode)
    rows = table.map(cut, batched=True, remove_columns=table.column_names)
    return TableRows(rows, rows=split_rows(len(rows), split=split, key="train.seq_len", value=seq_len))


class TableRows:
    """One split of a table with a column `input_ids` of equal lengths."""

    def __init__(self, table: Any, *, rows: range) -> None:
        self._table = table
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> dict[str, Tensor]:
        tokens = torch.tensor(self._table[self._rows[index]]["input_ids"], dtype=torch.int64)
        return {"input_ids": tokens, "labels": tokens}


def _load_table(datasets: Any, *, name: str, revision: str | None) -> Any:
    folder = Path(name)
    saved = any((folder / marker).is_file() for marker in ("dataset_dict.json", "state.json"))
    try:
        loaded = datasets.load_from_disk(name) if saved else datasets.load_dataset(name, revision=revision)
    except (OSError, ValueError) as error:
        fix = f"datasets says: {error}"
        raise ConfigError([Problem("data.name", name, "a hub id, or a local folder", fix)]) from error
    if not isinstance(loaded, Mapping):
        return loaded
    if TRAIN not in loaded:
        fix = f"it has the parts {', '.join(loaded)}; keep the rows to train on as {TRAIN}"
        raise ConfigError([Problem("data.name", name, f"a data set with a part {TRAIN}", fix)])
    return loaded[TRAIN]


def _load_tokenizer(name: str, revision: str | None) -> Any:
    try:
        import transformers

        return transformers.AutoTokenizer.from_pretrained(name, revision=revision or "main")
    except (ImportError, OSError, ValueError) as error:
        fix = f"transformers says: {error}"
        raise ConfigError([Problem("data.kwargs.tokenizer", name, "a hub id, or a local folder", fix)]) from error


def _cut_into_rows(
    batch: Mapping[str, Any], *, seq_len: int, text_column: str, tokenizer: Any | None
) -> dict[str, list[list[int]]]:
    """Lay the texts of one batch end to end and cut; the tail of each batch that fills no row is left out."""
    texts = list(batch[text_column])
    tokens = [list(text.encode()) for text in texts] if tokenizer is None else tokenizer(texts)["input_ids"]
    line = list(chain.from_iterable(tokens))
    return {"input_ids": [line[start : start + seq_len] for start in range(0, len(line) - seq_len + 1, seq_len)]}
