"""Two Hugging Face models from the disk, through the command line, as benchmarks/architectures.py takes nineteen.

The two are those that found most: one with running statistics, and an encoder-decoder that lies there in float16.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import ROOT


def _run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / "architectures.py"), *arguments, "--keep", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _record(folder: Path, name: str, stage: str) -> dict[str, Any]:
    [path] = folder.glob(f"outputs/{name}/{stage}/*/record.json")
    return json.loads(path.read_text(encoding="utf-8"))


def test_batch_norm_under_sharding_in_mixed_precision(tmp_path: Path) -> None:
    _run(tmp_path, "resnet", "--stages", "pilot", "--override", "pilot.strategies=[fsdp]")
    table = _record(tmp_path, "resnet", "pilot")["details"]["strategies"]["fsdp"]["dtypes"]
    assert set(table["parameters"]) == {"float32"}
    assert set(table["products"]) == {"bfloat16"}
    assert table["buffers"].keys() == {"float32", "int64"}, "statistics, and counts of batches"
    assert set(table["collectives"]["reduce_scatter"]) == {"float32"}


def test_an_encoder_decoder_in_float16_trains_in_float32(tmp_path: Path) -> None:
    assert "every stage of every model got through" in _run(tmp_path, "bart", "--stages", "prove")
    metrics = _record(tmp_path, "bart", "prove")["metrics"]
    [weights] = tmp_path.glob("models/bart/model.safetensors")
    # Two bytes a parameter on the disk; a checkpoint has four for each, and two moments of four.
    assert 2 * metrics["num_params"] <= weights.stat().st_size < 2.5 * metrics["num_params"]
    assert metrics["checkpoint_bytes"] > 12 * metrics["num_params"]
