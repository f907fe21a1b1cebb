"""The code as content: the same files have the same digest whatever the commit is called; uncommitted text is kept."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pilotkit.provenance.difference import read_difference, read_tree
from pilotkit.provenance.git import read_git


@pytest.fixture(autouse=True)
def _no_user_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))


def run(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(odd_tmp_path: Path) -> Path:
    run(odd_tmp_path, "init", "--quiet")
    (odd_tmp_path / "train.py").write_text("lr = 1\n")
    run(odd_tmp_path, "add", ".")
    run(odd_tmp_path, "commit", "--quiet", "--message", "first")
    return odd_tmp_path


def test_the_lock_in_its_own_repository_does_not_change_it(repository: Path) -> None:
    lock = repository / "lock.pilotkit.yaml"
    before = read_tree(repository, exclude=[lock]), read_git(repository, exclude=[lock]).state
    lock.write_text("lock_version: 2\n")
    assert (read_tree(repository, exclude=[lock]), read_git(repository, exclude=[lock]).state) == before
    run(repository, "add", ".")
    assert read_git(repository, exclude=[lock]).state == "clean"
    run(repository, "commit", "--quiet", "--message", "lock")
    assert (read_tree(repository, exclude=[lock]), read_git(repository, exclude=[lock]).state) == before
    lock.write_text("lock_version: 2\nmore: 1\n")
    assert read_git(repository, exclude=[lock]).state == "clean"
    assert read_git(repository).state == "dirty"
    assert read_tree(repository) != before[0]


def test_a_changed_file_or_mode_is_another_tree(repository: Path) -> None:
    seen = {read_tree(repository)}
    (repository / "train.py").chmod(0o755)
    run(repository, "commit", "--quiet", "--all", "--message", "mode")
    seen.add(read_tree(repository))
    (repository / "train.py").write_text("lr = 2\n")
    run(repository, "commit", "--quiet", "--all", "--message", "text")
    seen.add(read_tree(repository))
    assert len(seen) == 3
    assert None not in seen


def test_what_python_compiled_is_not_code(repository: Path) -> None:
    (repository / "pkg/__pycache__").mkdir(parents=True)
    (repository / "pkg/__pycache__/mine.cpython-311.pyc").write_bytes(b"x")
    assert read_git(repository).state == "clean"


def test_the_text_of_the_difference(repository: Path) -> None:
    (repository / "train.py").write_text("lr = 2\n")
    (repository / "new.py").write_text("width = 8\n")
    (repository / ".env").write_text("PASSWORD=hunter2\n")
    text = read_difference(repository, untracked=read_git(repository).untracked)
    assert "-lr = 1\n+lr = 2\n" in text
    assert "+width = 8\n" in text
    assert "untracked, not shown: .env\n" in text
    assert "hunter2" not in text
    without = read_difference(repository, untracked=[], exclude=[repository / "train.py"])
    assert without == ""


def test_a_long_difference_is_cut_and_says_so(repository: Path) -> None:
    (repository / "train.py").write_text("x\n" * (1 << 20))
    text = read_difference(repository, untracked=[])
    assert len(text) < (1 << 20) + 100
    assert text.splitlines()[-1].endswith("bytes in all")


def test_without_a_repository_there_is_none(tmp_path: Path) -> None:
    assert read_tree(tmp_path) is None
    assert read_difference(tmp_path, untracked=[]) == ""
