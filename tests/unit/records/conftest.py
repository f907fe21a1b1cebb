"""Folders that refuse writes for real: a full disk and a read-only one, both a small tmpfs where root may mount it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pilotkit.records.record import Record


@pytest.fixture
def make_record() -> Callable[..., Record]:
    """`make_record(run_id=..., ...)`: a small record with the given fields changed."""

    def make(**changes: object) -> Record:
        fields: dict[str, object] = {
            "run_id": "20260131-235959-1a2b3c",
            "stage": "measure",
            "status": "ok",
            "started_at": "2026-01-31T23:59:59+00:00",
            "metrics": {"step_seconds": 0.25},
            "origins": {"step_seconds": "measured"},
        }
        return Record(**{**fields, **changes})  # type: ignore[arg-type]  # plain values, checked by the tests

    return make


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB of its own. Skipped, and named in the summary, where mounting is not allowed."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mount.returncode:
        pytest.skip(f"NOT TESTED, a full disk needs leave to mount a tmpfs: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture
def read_only_folder(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder that takes no new file: by permission bits, or for root (who passes those) by a read-only mount."""
    if os.geteuid() == 0:
        folder: Path = request.getfixturevalue("small_disk")
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        yield folder
        return
    folder = tmp_path / "read only"
    folder.mkdir(mode=0o555)
    yield folder
    folder.chmod(0o755)
