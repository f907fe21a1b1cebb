"""Stage `report` from the command line: what it reads, and what it says of records that are not this run's."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def test_records_with_other_options_are_named(pilotkit_cli: Any, tmp_path: Path) -> None:
    assert pilotkit_cli("stage=lock", "train.seq_len=64").returncode == 0
    (lock,) = tmp_path.glob("outputs/*/lock/*/record.json")
    told = f"lock ran with other options: {lock.parent.name} (train.seq_len=64)"

    other = pilotkit_cli("stage=report")
    assert f"not on it: {told}" in other.stdout
    (page,) = tmp_path.glob("outputs/*/report/*/report.html")
    assert told in page.read_text(encoding="utf-8")

    same = pilotkit_cli("stage=report", "train.seq_len=64")
    assert "not on it" not in same.stdout
