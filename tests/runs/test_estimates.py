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


def test_a_sweep_over_shapes_and_cards_is_traced_by_one_worker(
    pilotkit_cli: Callable[..., Any], tmp_path: Path
) -> None:
    sweep = ("hardware=h100,h200", "train.micro_batch_size=1,2,4", "train.seq_len=64,96,100")
    result = pilotkit_cli("-m", *FSDP, *sweep, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "18 points: 18 ok" in result.stdout
    assert len(list(tmp_path.glob("out/*/estimate/*/phases/estimate/log.txt"))) == 1
    records = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("out/*/estimate/*/record.json"))]
    found = {_point(record): record for record in records}
    assert len(found) == 18
    # 100 is no length that the fit speaks of: it was traced.
    for length in ("96", "100"):
        alone = pilotkit_cli(
            *FSDP, "hardware=h200", "train.micro_batch_size=4", f"train.seq_len={length}", "name=alone"
        )
        assert alone.returncode == 0
        (path,) = tmp_path.glob("out/alone/estimate/*/record.json")
        record = json.loads(path.read_text())
        path.unlink()
        assert found[_point(record)]["metrics"] == record["metrics"]
        del record["details"]["threads"]  # of a worker, which the other point had none of its own
        assert record["details"].items() <= found[_point(record)]["details"].items()


def _point(record: dict[str, Any]) -> tuple[str, int, int]:
    config = record["config"]
    return config["hardware"]["name"], config["train"]["micro_batch_size"], config["train"]["seq_len"]


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
    assert "estimate.fallback=analytic" in result.stderr
    assert _record(tmp_path)["status"] == "refused"


def test_a_model_that_cannot_be_traced_is_counted_where_that_is_asked_for(
    pilotkit_cli: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(100, 100, bias=False)\n"
        "    def forward(self, input_ids, labels):\n"
        "        return input_ids.nonzero()\n"
        "build = Model\n",
        encoding="utf-8",
    )
    result = pilotkit_cli(
        *FSDP,
        "model=custom",
        "model.factory=mine:build",
        "estimate.fallback=analytic",
        "parallelism.nproc_per_node=8",
        env={"PYTHONPATH": _path(tmp_path)},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    record = _record(tmp_path)
    assert record["details"]["method"] == "analytic"
    assert record["details"]["calibration"] == "analytic, uncalibrated"
    # 10,000 weights of 4 bytes over 8 devices, and two moments of each
    assert record["metrics"]["parameters_bytes"] == 5000
    assert record["metrics"]["optimizer_state_bytes"] == 10000
    assert any("not traced: a step needs the values" in text for text in record["details"]["warnings"])
    assert "rule of thumb" in result.stdout


def test_measured_runs_correct_the_next_estimate(pilotkit_cli: Callable[..., Any], tmp_path: Path) -> None:
    """One real measurement and two rows of a table are traced, kept, and used for a shape that none of them is."""
    model = ("hardware=cpu", "parallelism=single", "parallelism.nproc_per_node=1", "model=gpt_tiny", "output_dir=out")
    shape = ("train.micro_batch_size=1", "train.seq_len=32")
    measured = pilotkit_cli("stage=measure", *model, *shape, "measure.num_measured_steps=3", timeout=280)
    assert measured.returncode == 0, measured.stdout + measured.stderr
    (tmp_path / "mine.csv").write_text("micro_batch_size,seq_len,step_seconds\n2,32,5\n2,64,10\n", encoding="utf-8")
    result = pilotkit_cli(
        *("stage=estimate", *model, "train.micro_batch_size=2", "train.seq_len=128", "estimate.measured_csv=mine.csv"),
        timeout=280,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    record = _record(tmp_path)
    rows = record["details"]["compared"]
    assert {row["shape"] for row in rows} == {"single, 2 x 32", "single, 2 x 64", "single, 1 x 32"}
    # What the meter counted on the processor is what the trace says, to the byte.
    (real,) = (row for row in rows if row["source"].startswith("measure"))
    assert real["allocated_measured_bytes"] == real["allocated_estimated_bytes"]
    assert record["details"]["memory_calibration"] == "calibrated by 1 run, within 5 % (band assumed)"
    assert record["metrics"]["traced_peak_allocated_bytes"] == record["metrics"]["peak_allocated_bytes"]
    assert record["details"]["calibration"].startswith("calibrated by 3 runs, within ")
    assert all(row["held_out_error"] is not None for row in rows)
    low, step, high = (record["metrics"][f"step_{name}"] for name in ("low_seconds", "seconds", "high_seconds"))
    assert low < step < high
    assert len(list(tmp_path.glob("out/calibration/cpu/gpt/*.json"))) == 3


def test_a_table_that_cannot_be_read_is_told_with_its_row(pilotkit_cli: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("seq_len,step_seconds\n128,fast\n", encoding="utf-8")
    result = pilotkit_cli("stage=estimate", "output_dir=out", "estimate.measured_csv=mine.csv")
    assert result.returncode == 2
    assert "row 1: step_seconds=fast is not a number above 0" in result.stderr


def _path(folder: Path) -> str:
    return f"{Path(__file__).resolve().parents[2]}:{folder}"
