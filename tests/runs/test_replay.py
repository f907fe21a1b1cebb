"""Two runs of one lock are equal to the bit, with DDP and loader processes; what was changed meanwhile is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

ONE_LOCK = ("parallelism=ddp", "data.num_workers=2", "restore.num_steps=2", "train.seed=5")
BITWISE = ("stage=replay", "replay.rtol=0")


def _newest(folder: Path, stage: str) -> tuple[Path, dict[str, Any]]:
    path = max(folder.glob(f"outputs/default/{stage}/*/record.json"), key=lambda path: path.stat().st_mtime_ns)
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return path.parent, record


@pytest.mark.timeout(600)  # six process groups of two ranks with two loaders each
def test_a_run_again_is_equal_to_the_bit(pilotkit_cli: Any, tmp_path: Path, mine: tuple[str, ...]) -> None:
    assert pilotkit_cli("stage=lock", *mine, *ONE_LOCK).returncode == 0
    result = pilotkit_cli("stage=restore", *mine, *ONE_LOCK)
    assert result.returncode == 0, result.stdout + result.stderr
    folder, _ = _newest(tmp_path, "restore")
    # Nothing of the configuration is typed again: it is the run's own.
    result = pilotkit_cli(*BITWISE, f"replay.run={folder.relative_to(tmp_path)}")
    assert result.returncode == 0, result.stdout + result.stderr
    _, record = _newest(tmp_path, "replay")
    assert record["details"]["verdict"] == "same"
    rows = {row["component"]: row for row in record["details"]["comparison"]}
    assert rows["lock"]["note"] == "no drift"
    for component in ("parameters", "optimizer", "random states", "rows", "losses", "gradient norms"):
        row = rows[f"restore_uninterrupted: {component}"]
        assert (row["verdict"], row["note"].endswith(", equal")) == ("same", True), row
    assert len(list(tmp_path.glob("outputs/default/restore/*"))) == 1  # the run again is not evidence


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("stage", "more", "phase"),
    [("measure", (), "measure"), ("pilot", ("pilot.num_measured_steps=3", "pilot.strategies=[ddp]"), "pilot_ddp")],
    ids=["measure", "pilot"],
)
def test_the_clock_decides_no_loss(
    pilotkit_cli: Any, tmp_path: Path, mine: tuple[str, ...], stage: str, more: tuple[str, ...], phase: str
) -> None:
    """Warm-up ends when the steps have settled: the run again takes as many, whatever its own clock says."""
    words = (*mine, "parallelism=ddp", "data.num_workers=2", *more)
    assert pilotkit_cli("stage=lock", *words).returncode == 0
    result = pilotkit_cli(f"stage={stage}", *words)
    assert result.returncode == 0, result.stdout + result.stderr
    folder, _ = _newest(tmp_path, stage)
    found = json.loads((folder / "phases" / phase / "result.json").read_text(encoding="utf-8"))
    pilotkit_cli(*BITWISE, "replay.time_rtol=100", f"replay.run={folder.relative_to(tmp_path)}")
    again, record = _newest(tmp_path, "replay")
    (config,) = again.glob(f"*/*/{stage}/*/run.yaml")
    told = yaml.safe_load(config.read_text(encoding="utf-8"))["replay"]["warmup_steps"]
    assert told[phase] == found["metrics"]["num_warmup_steps"]
    rows = {row["component"]: row for row in record["details"]["comparison"]}
    for component in ("losses", "counts"):
        assert rows[f"{phase}: {component}"]["verdict"] == "same", rows
    assert rows["lock"]["note"] == "no drift"


def test_what_changed_meanwhile_is_named(pilotkit_cli: Any, tmp_path: Path, mine: tuple[str, ...]) -> None:
    assert pilotkit_cli("stage=lock", *mine).returncode == 0
    assert pilotkit_cli("stage=measure", *mine).returncode == 0
    folder, _ = _newest(tmp_path, "measure")
    text = (tmp_path / "mine.py").read_text(encoding="utf-8")
    (tmp_path / "mine.py").write_text(text.replace("Linear(width, 256)", "Linear(width, 256, bias=False)"))
    result = pilotkit_cli(*BITWISE, f"replay.run={folder.relative_to(tmp_path)}")
    assert result.returncode == 1
    assert "replay mismatch: lock is different: model.revision: " in result.stderr
    rows = {row["component"]: row["verdict"] for row in _newest(tmp_path, "replay")[1]["details"]["comparison"]}
    assert (rows["measure: losses"], rows["measure: counts"]) == ("different", "different")


def test_what_is_no_run_is_said(pilotkit_cli: Any, tmp_path: Path) -> None:
    result = pilotkit_cli("stage=replay")
    assert result.returncode == 2
    assert "replay.run=null" in result.stderr
    result = pilotkit_cli("stage=replay", "replay.run=nowhere")
    assert result.returncode == 2
    assert "no record.json here" in result.stderr
    assert "Traceback" not in result.stderr
