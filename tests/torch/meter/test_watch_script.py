"""A script under the watch: what it sees of itself, and how its end is told."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import pytest

from pilotkit.meter import watch_script

SCRIPT = """
import sys
import torch

layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    optimizer.step()
{end}
"""


@pytest.fixture
def meter_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the watch writes; arguments and the path of modules are put back afterwards."""
    monkeypatch.setenv("PILOTKIT_METER_FILE", str(tmp_path / "meter.json"))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "meter.json"


@pytest.mark.parametrize("end", ["", "sys.exit()", "sys.exit(0)"])
def test_a_good_end_leaves_the_file(end: str, meter_file: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(end=end))
    with contextlib.suppress(SystemExit):
        watch_script.main(["64", str(script), "8"])
    found = json.loads(meter_file.read_text())
    assert len(found["step_seconds"]) == 8
    assert found["metrics"]["tokens_per_step"] == 64


@pytest.mark.parametrize("end", ["raise ValueError('bad row 17')", "sys.exit(3)"])
def test_a_bad_end_leaves_none(end: str, meter_file: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(end=end))
    with pytest.raises((ValueError, SystemExit)):
        watch_script.main(["64", str(script), "8"])
    assert not meter_file.exists()
