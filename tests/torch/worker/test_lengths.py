"""The lengths of rows: what reaches seq_len, and which rows a measurement steps on (case R43)."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
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
    assert (found.num_rows, found.longest, found.mean, found.full_share) == (64, 8, 4.5, 0.125)
    assert found.longest_rows == ()


def test_some_rows_are_looked_at_however_slow_they_are() -> None:
    found = look_at_lengths(Padded(), seq_len=8, seed=0, seconds=0.0)
    assert (found.num_rows, found.num_in_all) == (16, 64)


def test_pictures_have_no_length() -> None:
    found = look_at_lengths(Pictures(), seq_len=8, seed=0, seconds=1.0)
    assert (found.num_rows, found.longest, found.longest_rows, found.metrics()) == (64, None, (), {})


class Sound:
    """No tokens, and one recording that is longer."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_values": torch.ones(160 if index == 19 else 80), "labels": torch.tensor(1)}


class Answers(Sound):
    """Questions are all of one length, and one answer is longer."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": torch.ones(4).long(), "labels": torch.ones(8 if index == 19 else 4).long()}


@pytest.mark.parametrize("rows", [Sound(), Answers()], ids=["sound", "long answers"])
def test_every_tensor_of_a_row_counts(rows: Any) -> None:
    assert look_at_lengths(rows, seq_len=8, seed=0, seconds=10.0).longest_rows == (19,)


class LongestLast(Padded):
    """Rows of four tokens; those from `full_from` on have eight."""

    def __init__(self, full_from: int) -> None:
        self._full_from = full_from

    def __len__(self) -> int:
        return 3000

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": torch.ones(8 if index >= self._full_from else 4).long()}


def test_a_look_goes_on_until_a_row_is_full() -> None:
    last = look_at_lengths(LongestLast(2999), seq_len=8, seed=0, seconds=60.0)
    assert (last.longest, last.longest_rows) == (8, (2999,))
    everywhere = look_at_lengths(LongestLast(0), seq_len=8, seed=0, seconds=60.0)
    assert (everywhere.num_rows, everywhere.longest_rows) == (1024, ())


def test_chosen_rows() -> None:
    chosen = ChosenRows(Padded(), (3, 7))
    assert len(chosen) == 2
    assert [int(chosen[index]["attention_mask"].sum()) for index in range(2)] == [4, 8]


def ragged_rows(run_dir: RunDir) -> list[int]:
    """Put the module where the phase will find it; the list of the rows that are read from it."""
    (run_dir.path.parent / "ragged.py").write_text(RAGGED, encoding="utf-8")
    sys.modules.pop("ragged", None)
    seen: list[int] = importlib.import_module("ragged").SEEN
    return seen


def test_a_measurement_steps_on_the_longest_rows(make_run_dir: Callable[..., RunDir]) -> None:
    values = {"data.factory": "ragged:build", "data.kwargs": {}, "train.micro_batch_size": 1}
    run_dir = make_run_dir(values, phase="measure")
    seen = ragged_rows(run_dir)
    run_phase(run_dir, phase="measure", rank=0)
    # Row 0 tells what rows are; then all are looked at, those of training and those of evaluation.
    assert set(seen[1:41]) == set(seen[41:81]) == set(range(40))
    assert set(seen[81:]) == {38, 39}
    result = json.loads(run_dir.phase("measure").result.read_text())
    metrics = result["metrics"]
    assert (metrics["longest_row_tokens"], metrics["num_rows_looked_at"]) == (32, 40)
    assert metrics["full_rows_share"] == 2 / 40
    assert metrics["batch_bytes"] == 2 * 32 * 8


@pytest.mark.parametrize("lengths", ["ragged", "equal"])
def test_other_lengths_are_compiled_again(
    lengths: str, make_run_dir: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case R84: the counted steps are of one length, and the long run meets all of them."""
    compile_module = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: compile_module(module, backend="eager"))
    torch._dynamo.reset()
    values = {"data.factory": "ragged:build", "data.kwargs": {}, "train.micro_batch_size": 1, "train.compile": True}
    run_dir = make_run_dir({**values, "measure.num_measured_steps": 6}, phase="measure")
    ragged_rows(run_dir)
    if lengths == "equal":
        monkeypatch.setattr(importlib.import_module("ragged").Rows, "__len__", lambda rows: 1)
    run_phase(run_dir, phase="measure", rank=0)
    result = run_dir.phase("measure").read_result()
    assert result is not None
    metrics, again = result["metrics"], result["time"]["length_compilations"]
    assert metrics["num_recompilations"] == 0
    assert metrics.get("num_length_recompilations", 0) == len(again)
    assert bool(again) is (lengths == "ragged")
    assert all("size" in item["reason"] for item in again)


def test_a_run_again_steps_on_the_same_rows(make_run_dir: Callable[..., RunDir], tmp_path: Path) -> None:
    values = {"data.factory": "ragged:build", "data.kwargs": {}, "train.micro_batch_size": 1}
    before = RunDir(tmp_path / "before")
    before.path.mkdir()
    kept = {"num_rows": 16, "num_in_all": 40, "longest": 11, "mean": 9.0, "full_share": 0.0, "longest_rows": [3, 7]}
    before.row_lengths.write_text(json.dumps({"train": kept, "eval": kept}), encoding="utf-8")
    run_dir = make_run_dir({**values, "replay.rows_of": str(before.path)}, phase="measure")
    seen = ragged_rows(run_dir)
    run_phase(run_dir, phase="measure", rank=0)
    assert set(seen[1:]) == {3, 7}


@pytest.mark.parametrize("phase", ["pilot_single", "numerics_none"])
def test_other_phases_step_on_them_too_and_a_run_looks_once(phase: str, make_run_dir: Callable[..., RunDir]) -> None:
    values = {"data.factory": "ragged:build", "data.kwargs": {}, "train.micro_batch_size": 1}
    run_dir = make_run_dir(values, phase=phase)
    seen = ragged_rows(run_dir)
    kept = {"num_rows": 40, "num_in_all": 40, "longest": 32, "mean": 10.0, "full_share": 0.025, "longest_rows": [39]}
    run_dir.row_lengths.write_text(json.dumps({"train": kept, "eval": kept}), encoding="utf-8")
    run_phase(run_dir, phase=phase, rank=0)
    assert set(seen[1:]) == {39}
    seen.clear()
    run_dir.row_lengths.unlink()
    run_phase(run_dir, phase=phase, rank=0)
    assert set(seen[81:]) == {38, 39}
    assert json.loads(run_dir.row_lengths.read_text())["train"]["longest_rows"] in ([38, 39], [39, 38])
