"""Stage `measure` as a user runs it: the parts of memory and time add up, and planted faults are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PilotkitCli
from tests.runs.documented import undocumented

SLOW_DATA = """
import time, torch

class Rows:
    def __len__(self):
        return 400
    def __getitem__(self, index):
        time.sleep(0.05)
        tokens = torch.arange(64) % 7
        return {"input_ids": tokens, "labels": tokens}

def build(*, split, seq_len, seed):
    return Rows()
"""
SMALL = ("model.kwargs.hidden_size=64", "model.kwargs.num_layers=2", "train.seq_len=64")


def _record(folder: Path) -> dict[str, Any]:
    [path] = folder.glob("outputs/default/measure/*/record.json")
    return json.loads(path.read_text())


def test_memory_by_kind_adds_up_to_the_peak(pilotkit_cli: PilotkitCli, tmp_path: Path) -> None:
    result = pilotkit_cli("stage=measure", *SMALL)
    assert result.returncode == 0, result.stderr
    record = _record(tmp_path)
    metrics, memory = record["metrics"], record["details"]["memory"]
    assert undocumented(metrics) == []
    kinds = memory["breakdown"]["kinds"]
    assert sum(kinds.values()) == pytest.approx(metrics["peak_allocated_bytes"], rel=0.01)
    assert kinds["parameters"] == metrics["num_params"] * 4
    # Two moments for every parameter, and one float32 step counter for each tensor.
    assert 0 <= kinds["optimizer_state"] - 8 * metrics["num_params"] < 1000
    # The peak stands where backward begins: the state is there, and no gradient yet.
    assert metrics["peak_allocated_bytes"] - metrics["first_step_peak_bytes"] == kinds["optimizer_state"]
    assert memory["deciding_phase"] == "steps"
    assert {"blocks.0", "blocks.1"} <= memory["breakdown"]["modules"].keys()
    assert not list(tmp_path.glob("outputs/**/checkpoints/*"))


def test_a_sleeping_loader_is_told_with_its_own_rate(pilotkit_cli: PilotkitCli, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW_DATA)
    result = pilotkit_cli(
        "stage=measure", *SMALL, "data=custom", "data.factory=slow:build", "data.num_workers=2",
        "measure.num_warmup_steps=2", "measure.max_warmup_steps=4", "measure.checkpoint_peak=false",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    record = _record(tmp_path)
    metrics = record["metrics"]
    assert undocumented(metrics) == []
    # Four rows of 50 ms a batch, and two processes: ten batches a second and not more, fewer on a busy machine.
    assert 1 < metrics["loader_batches_per_second"] < 10.5
    assert metrics["data_wait_share"] > 0.3
    assert any("the loader delivers at most" in text for text in record["details"]["warnings"])
    parts = ("data_wait", "forward", "backward", "optimizer", "other")
    assert sum(metrics[f"{part}_seconds"] for part in parts) == pytest.approx(metrics["step_mean_seconds"])
    assert metrics["step_ci_low_seconds"] <= metrics["step_seconds"] <= metrics["step_ci_high_seconds"]
    assert metrics["num_warmup_steps"] == 4
