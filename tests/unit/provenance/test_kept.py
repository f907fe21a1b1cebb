"""The state of kept code, handed from a submission to its jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotkit.provenance.git import GitState
from pilotkit.provenance.kept import KEPT_VARIABLE, read_kept, write_kept


def test_a_job_reads_what_the_submission_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEPT_VARIABLE, raising=False)
    assert read_kept() is None, "nothing was kept for this process"
    git = GitState("dirty", "abc", "def", ["größe.py"], "changed")
    monkeypatch.setenv(KEPT_VARIABLE, str(write_kept(tmp_path, git, "tree")))
    assert read_kept() == (git, "tree")


def test_a_file_that_is_gone_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEPT_VARIABLE, str(tmp_path / "absent"))
    assert read_kept() is None
