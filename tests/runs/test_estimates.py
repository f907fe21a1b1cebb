"""`stage=estimate` from outside: for hardware that is not here, to a record; what cannot be traced is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

FSDP = ("stage=estimate", "hardware=h100", "parallelism=fsdp", "precision=bf16_mixed", "output_dir=out")


def _record(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("out/*/estimate/*/record.json")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_a_grid_on_hardware_that_is_not_here(pilotkit_cli: Callable[..., Any], tmp_path: Path) -> None:
    result = pilotkit_cli(
        *FSDP, "model=gpt2", "estimate.micro_batch_sizes=[4,4096]", "estimate.seq_lens=[512,1024]", timeout=280
    )
    assert result.returncode == 0, result.stdout + result.stderr
    record = _record(tmp_path)
    assert record["status"] == "ok"
    assert record["origins"]["peak_allocated_bytes"] == record["origins"]["step_seconds"] == "estimated"
    assert record["metrics"]["peak_reserved_bytes"] >= record["metrics"]["peak_allocated_bytes"]
    assert record["metrics"]["device_used_bytes"] > record["metrics"]["peak_reserved_bytes"]
    assert record["details"]["grid"]["largest_micro_batch"] == {"512": 4, "1024": 4}
    assert record["details"]["grid"]["how"].startswith("fitted to a few small traces")
    assert record["details"]["attention"] == ["_scaled_dot_product_flash_attention"]
    assert "uncalibrated" in result.stdout
    assert "largest that fits" in result.stdout


def test_what_does_not_fit_is_a_result(pilotkit_cli: Callable[..., Any], tmp_path: Path) -> None:
    result = pilotkit_cli(*FSDP, "train.micro_batch_size=500000", timeout=200)
    assert result.returncode == 0, result.stdout + result.stderr
    assert _record(tmp_path)["status"] == "does_not_fit"


def test_a_model_that_branches_on_values_is_refused_in_one_message(
    pilotkit_cli: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Model(torch.nn.Linear):\n"
        "    def forward(self, input_ids, labels):\n"
        "        if self.weight.sum() > 0:\n"
        "            return None\n"
        "def build():\n"
        "    return Model(2, 2)\n",
        encoding="utf-8",
    )
    result = pilotkit_cli(*FSDP, "model=custom", "model.factory=mine:build", env={"PYTHONPATH": _path(tmp_path)})
    assert result.returncode == 1
    assert "needs the values of tensors" in result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    assert _record(tmp_path)["status"] == "refused"


def _path(folder: Path) -> str:
    return f"{Path(__file__).resolve().parents[2]}:{folder}"
