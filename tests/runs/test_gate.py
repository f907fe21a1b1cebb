"""The gate from outside: a committed lock, what drifts from it, and what each mode makes of that."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

LOCK = ("lock.path=lock.pilotkit.yaml",)
CHECK = (*LOCK, "lock.mode=check")


def _newest(folder: Path, stage: str) -> dict[str, Any]:
    path = max(folder.glob(f"outputs/*/{stage}/*/record.json"), key=lambda path: path.stat().st_mtime_ns)
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def _commit(folder: Path) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "all"]):
        subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_a_committed_lock_is_held(pilotkit_cli: Any, tmp_path: Path, mine: tuple[str, ...]) -> None:
    (tmp_path / ".gitignore").write_text("outputs/\n", encoding="utf-8")
    _commit(tmp_path)
    assert pilotkit_cli("stage=lock", *mine, *LOCK).returncode == 0
    before = _newest(tmp_path, "lock")["lock_digest"]
    _commit(tmp_path)  # the lock's own commit is no drift
    assert pilotkit_cli("stage=lock", *mine, *LOCK).returncode == 0
    assert _newest(tmp_path, "lock")["lock_digest"] == before
    result = pilotkit_cli("stage=measure", *mine, *CHECK)
    assert result.returncode == 0, result.stderr
    record = _newest(tmp_path, "measure")
    assert record["lock_digest"] == _newest(tmp_path, "lock")["lock_digest"]
    assert record["provenance"]["gate"] == {
        "against": "lock.pilotkit.yaml", "drift": [], "voids": {}, "allowed": [], "not_compared": [],
    }  # fmt: skip

    with open(tmp_path / "mine.py", "a", encoding="utf-8") as stream:
        stream.write("# changed\n")
    result = pilotkit_cli("stage=measure", *mine, *CHECK)
    assert result.returncode == 1
    assert "measure refused: 3 fields drifted from lock.pilotkit.yaml: model.revision: " in result.stderr
    assert "git.state: clean -> dirty" in result.stderr
    refused = _newest(tmp_path, "measure")
    assert (refused["status"], refused["phases"]) == ("refused", [])
    assert [item["field"] for item in refused["provenance"]["gate"]["drift"]] == [
        "model.revision", "git.state", "git.diff_digest",
    ]  # fmt: skip
    assert refused["lock_digest"] != record["lock_digest"]

    result = pilotkit_cli("-m", "stage=prove", "train.seq_len=16,32", *mine[:-1], *CHECK)
    assert result.returncode == 1
    assert "nothing was submitted: 3 fields drifted from lock.pilotkit.yaml: model.revision: " in result.stderr
    assert not list(tmp_path.glob("outputs/*/prove"))

    warned = pilotkit_cli("-m", "stage=budget", "train.seq_len=16,32", *mine[:-1], *LOCK, "lock.mode=warn")
    assert warned.returncode == 0, warned.stderr
    told = [line for line in warned.stdout.splitlines() if "drifted from lock.pilotkit.yaml" in line]
    assert "model.revision: " in told[0]
    assert "config." not in told[0]  # what points vary is theirs to tell

    allow = 'lock.allow=["model.revision: a comment only", "git.*: a comment only"]'
    result = pilotkit_cli("stage=measure", *mine, *CHECK, allow)
    assert result.returncode == 0, result.stderr
    allowed = _newest(tmp_path, "measure")
    assert allowed["lock_digest"] == record["lock_digest"]
    assert {item["reason"] for item in allowed["provenance"]["gate"]["allowed"]} == {"a comment only"}


def test_a_drift_goes_on_in_mode_write_and_is_void(pilotkit_cli: Any, tmp_path: Path, mine: tuple[str, ...]) -> None:
    assert pilotkit_cli("stage=lock", *mine).returncode == 0
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text() + "# changed\n")
    result = pilotkit_cli("stage=measure", *mine)
    assert result.returncode == 0, result.stderr
    assert "drifted from lock" in result.stdout
    assert "voids numerics, memory, speed, restore: model.revision: " in result.stdout
    assert pilotkit_cli("stage=plan", *mine).returncode == 0
    missing = [item["what"] for item in _newest(tmp_path, "plan")["details"]["verdict"]["missing"]]
    lock, measure = (_newest(tmp_path, stage)["run_id"] for stage in ("lock", "measure"))
    assert missing[0].startswith(f"lock: 1 field drifted from lock {lock}: model.revision: ")
    assert f"measure: drifted since {measure}, the newest lock is {lock} (model.revision)" in missing


@pytest.mark.parametrize(
    ("overrides", "code", "words"),
    [
        (("lock.mode=check",), 2, "lock.mode=check"),
        (CHECK, 2, "No such file or directory; write one with stage=lock lock.mode=write"),
        (('lock.allow=["git.*: "]',), 2, "a list of `field: reason`, as records keep the reason"),
    ],
    ids=["no path", "no file", "no reason"],
)
def test_what_cannot_be_checked_is_said(
    pilotkit_cli: Any, mine: tuple[str, ...], overrides: tuple[str, ...], code: int, words: str
) -> None:
    result = pilotkit_cli("stage=measure", *mine, *overrides)
    assert result.returncode == code, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_what_cannot_be_resolved_is_no_lock(pilotkit_cli: Any, tmp_path: Path, mine: tuple[str, ...]) -> None:
    result = pilotkit_cli("stage=lock", *mine, *LOCK, "image=org/x:1.2")
    assert result.returncode == 1
    assert "no lock: container org/x:1.2 is not pinned: a tag is not identity" in result.stderr
    assert "'lock.allow=[\"container.digest: why\"]'" in result.stderr
    assert not (tmp_path / "lock.pilotkit.yaml").exists()

    allowed = pilotkit_cli("stage=lock", *mine, *LOCK, "image=org/x:1.2", 'lock.allow=["container.digest: it is ours"]')
    assert allowed.returncode == 0, allowed.stderr
    assert (tmp_path / "lock.pilotkit.yaml").exists()
    (kept,) = _newest(tmp_path, "lock")["details"]["allowed"]
    assert (kept["field"], kept["reason"]) == ("container.digest", "it is ours")


def test_a_digest_with_its_tag_passes_the_command_line_and_is_locked(
    pilotkit_cli: Any, tmp_path: Path, mine: tuple[str, ...]
) -> None:
    """Case R98: neither colon nor at sign needs quotes."""
    digest = f"sha256:{'0a' * 32}"
    result = pilotkit_cli("stage=lock", *mine, *LOCK, f"image=org/x:1.2@{digest}")
    assert result.returncode == 0, result.stderr
    assert _newest(tmp_path, "lock")["details"]["lock"]["container"]["digest"] == digest


def test_a_broken_repository_is_no_lock_until_somebody_says_why(
    pilotkit_cli: Any, tmp_path: Path, mine: tuple[str, ...]
) -> None:
    """Case R99: git answers as if there was none."""
    (tmp_path / ".git").mkdir()
    result = pilotkit_cli("stage=lock", *mine, *LOCK)
    assert result.returncode == 1
    assert "no lock: the state of the code is unknown: the .git here leads to no repository" in result.stderr
    assert not (tmp_path / "lock.pilotkit.yaml").exists()
    allowed = pilotkit_cli("stage=lock", *mine, *LOCK, 'lock.allow=["git.state: a copy for one trial"]')
    assert allowed.returncode == 0, allowed.stderr
    assert "not pinned: the state of the code is unknown" in allowed.stdout
