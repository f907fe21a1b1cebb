"""The lengths of rows: what reaches seq_len, and which rows a measurement steps on (case R43)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from pilotkit.records.run_dir import RunDir
from pilotkit.worker.lengths import ChosenRows, look_at_lengths
from pilotkit.worker.phases import run_phase

# The longest comes last, where a run would meet it after hours.
RAGGED = """
import torch

SEEN = []

class Rows:
    def __len__(self):
        return 40
    def __getitem__(self, index):
        SEEN.append(index)
        tokens = torch.arange(32 if index >= 38 else 8 + index % 4)
        return {"input_ids": tokens, "labels": tokens}

def build(*, split, seq_len, seed):
    return Rows()
"""


class Padded:
    """Row i holds 1 + i % 8 tokens, padded to eight."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        mask = (torch.arange(8) <= index % 8).long()
        return {"input_ids": torch.ones(8, dtype=torch.int64), "attention_mask": mask}


class Pictures(Padded):
    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"pixel_values": torch.ones(3, 8, 8), "labels": torch.tensor(1)}


def test_padding_is_no_token_and_equal_widths_need_no_choice() -> None:
    found = look_at_lengths(Padded(), seq_len=8, seed=0, seconds=10.0)
    assert found is not None
    assert (found.num_rows, found.longest, found.mean, found.full_share) == (64, 8, 4.5, 0.125)
    assert found.longest_rows == ()


def test_some_rows_are_looked_at_however_slow_they_are() -> None:
    found = look_at_lengths(Padded(), seq_len=8, seed=0, seconds=0.0)
    assert found is not None
    assert found.num_rows == 16


def test_pictures_have_no_length() -> None:
    assert look_at_lengths(Pictures(), seq_len=8, seed=0, seconds=1.0) is None


def test_chosen_rows() -> None:
    chosen = ChosenRows(Padded(), (3, 7))
    assert len(chosen) == 2
    assert [int(chosen[index]["attention_mask"].sum()) for index in range(2)] == [4, 8]


def test_a_measurement_steps_on_the_longest_rows(make_run_dir: Callable[..., RunDir]) -> None:
    values = {"data.factory": "ragged:build", "data.kwargs": {}, "train.micro_batch_size": 1}
    run_dir = make_run_dir(values, phase="measure")
    (Path(run_dir.path).parent / "ragged.py").write_text(RAGGED, encoding="utf-8")
    run_phase(run_dir, phase="measure", rank=0)
    import ragged  # type: ignore[import-not-found]

    looked_at, trained_on = ragged.SEEN[1:41], ragged.SEEN[42:]
    assert set(looked_at) == set(range(40))
    # Evaluation has its own rows, from the first on; training has 38 and 39.
    assert {38, 39} <= set(trained_on) <= {38, 39, *range(8)}
    result = json.loads(run_dir.phase("measure").result.read_text())
    metrics = result["metrics"]
    assert (metrics["longest_row_tokens"], metrics["num_rows_looked_at"]) == (32, 40)
    assert metrics["full_rows_share"] == 2 / 40
    assert metrics["batch_bytes"] == 2 * 32 * 8
