"""The provenance of every record."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import pilotkit
from pilotkit.provenance import light
from pilotkit.provenance.light import light_provenance


def test_all_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr(light, "_PACKAGES", ("omegaconf", "no-such-package"))
    assert light_provenance() == {
        "pilotkit": pilotkit.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hostname": socket.gethostname(),
        "git": {"commit": None, "state": "unknown"},
        "packages": {"omegaconf": importlib.metadata.version("omegaconf"), "no-such-package": None},
    }


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_of_the_working_directory_without_the_output_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", "init", "--quiet"], check=True)
    subprocess.run(["git", *identity, "commit", "--quiet", "--allow-empty", "--message", "first"], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs/record.json").write_text("{}")
    assert light_provenance()["git"] == {"commit": commit, "state": "untracked"}
    assert light_provenance(exclude=[Path("outputs")])["git"] == {"commit": commit, "state": "clean"}


def test_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert light_provenance()["git"] == {"commit": None, "state": "unknown"}


def test_without_torch() -> None:
    code = (
        "import sys\n"
        "from pilotkit.provenance.light import light_provenance\n"
        "light_provenance()\n"
        "assert 'torch' not in sys.modules\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
