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
FUSED = """
from types import SimpleNamespace
from torch import nn

class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(256, 128), nn.Linear(128, 16)

    def forward(self, input_ids, labels):
        hidden = self.embed(input_ids)
        for _ in range(8):
            hidden = nn.functional.gelu(hidden) * 1.5
        return SimpleNamespace(loss=self.head(hidden).square().mean())

def build():
    return Fused()
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


def test_of_a_compiled_step_the_peak_is_its_own(pilotkit_cli: PilotkitCli, tmp_path: Path) -> None:
    """The tracker of operators sees none of compiled code: it would tell the peak of the step uncompiled."""
    (tmp_path / "fused.py").write_text(FUSED)
    mine = ("model=custom", "model.factory=fused:build", "train.seq_len=64", "measure.checkpoint_peak=false")
    peaks = {}
    for compiled in ("false", "true"):
        result = pilotkit_cli("stage=measure", *mine, f"name=compile-{compiled}", f"train.compile={compiled}")
        assert result.returncode == 0, result.stderr
        [path] = tmp_path.glob(f"outputs/compile-{compiled}/measure/*/record.json")
        record = json.loads(path.read_text())
        metrics, memory = record["metrics"], record["details"]["memory"]
        assert undocumented(metrics) == []
        peaks[compiled] = metrics["peak_allocated_bytes"]
        kinds = memory["breakdown"]["kinds"]
        assert sum(kinds.values()) + metrics.get("peak_unseen_bytes", 0) == metrics["peak_allocated_bytes"]
    assert memory["peaks_by"] == "allocations"
    assert kinds.keys() == {"parameters", "optimizer_state", "buffers"}
    assert metrics["num_recompilations"] == 0
    assert metrics["compile_seconds"] > 0
    # Evaluation is compiled for itself, and not in the batches that are timed.
    assert metrics["eval_batch_seconds"] < metrics["compile_seconds"] / 10
    # Uncompiled, gelu keeps its input in each of eight rounds, 4 x 64 x 128 floats; fused, one is kept for all.
    assert peaks["false"] - peaks["true"] == pytest.approx(7 * 4 * 64 * 128 * 4, rel=0.01)


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
