"""Stage `measure` as a user runs it: the parts of memory and time add up, and planted faults are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PilotkitCli

SMALL = ("model.kwargs.hidden_size=64", "model.kwargs.num_layers=2", "train.seq_len=64")


def _record(folder: Path) -> dict[str, Any]:
    [path] = folder.glob("outputs/default/measure/*/record.json")
    return json.loads(path.read_text())


def test_memory_by_kind_adds_up_to_the_peak(pilotkit_cli: PilotkitCli, tmp_path: Path) -> None:
    result = pilotkit_cli("stage=measure", *SMALL)
    assert result.returncode == 0, result.stderr
    record = _record(tmp_path)
    metrics, memory = record["metrics"], record["details"]["memory"]
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
