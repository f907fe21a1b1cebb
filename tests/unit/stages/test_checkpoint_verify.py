"""Stage `checkpoint_verify`: the same answer for a folder of this machine and for an object store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotkit.records import manifest
from pilotkit.records.digests import sha256_of
from pilotkit.stages import checkpoint_verify
from pilotkit.stages.run import Run

MakeRun = Callable[..., Run]
NEWEST = "step-0000000002"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two whole checkpoints, as a save leaves them; what their tensors are does not matter here."""
    for step in (1, 2):
        path = tmp_path / "run" / f"step-{step:010d}"
        path.mkdir(parents=True)
        (path / "trainer.json").write_text(json.dumps({"step": step}))
        manifest.write(path, [manifest.Entry("trainer.json", *sha256_of(path / "trainer.json"))], about={"step": step})
    return tmp_path / "run"


@pytest.fixture(params=["path", "URL"])
def given(request: pytest.FixtureRequest, root: Path) -> str:
    return str(root) if request.param == "path" else f"file://{root}"


def verdicts(result: checkpoint_verify.StageResult) -> list[tuple[str, str]]:
    return [(row["verdict"], row["note"]) for row in result.details["comparison"]]


def test_the_newest_one_is_sound(make_run: MakeRun, given: str) -> None:
    result = checkpoint_verify.run(make_run("checkpoint_verify", {"restore.path": given}))
    assert (result.status, result.problem) == ("ok", None)
    assert verdicts(result)[0] == ("PASS", "step 2, 1 files, 11 B")


def test_a_damaged_newest_one_is_no_ok_though_the_one_before_is_sound(
    make_run: MakeRun, given: str, root: Path
) -> None:
    (root / NEWEST / "trainer.json").write_text("short")
    result = checkpoint_verify.run(make_run("checkpoint_verify", {"restore.path": given}))
    assert result.status == "mismatch"
    assert result.problem is not None
    assert f"{NEWEST}/trainer.json: 5 bytes, written with 11" in result.problem.summary
    assert result.problem.cause.startswith("the newest sound one is ")
    assert result.problem.cause.endswith("step-0000000001")
    assert [verdict for verdict, _ in verdicts(result)] == ["FAIL", "PASS"]


def test_what_was_cut_short_or_set_aside_is_told_and_deleted_on_request(
    make_run: MakeRun, given: str, root: Path
) -> None:
    (root / NEWEST).rename(root / f".{NEWEST}.damaged")
    result = checkpoint_verify.run(make_run("checkpoint_verify", {"restore.path": given}))
    assert result.status == "ok"
    verdict, note = verdicts(result)[-1]
    assert verdict == "NOT RUN"
    assert note.startswith("left over: it did not verify")
    assert note.endswith("restore.clean_partial=true deletes it")
    assert (root / f".{NEWEST}.damaged").exists()
    options = {"restore.path": given, "restore.clean_partial": True}
    result = checkpoint_verify.run(make_run("checkpoint_verify", options))
    assert verdicts(result)[-1] == ("PASS", "deleted, as restore.clean_partial asks")
    assert not list(root.rglob("trainer.json"))[1:]


def test_a_store_that_holds_none_or_does_not_answer(make_run: MakeRun, tmp_path: Path, monkeypatch) -> None:
    result = checkpoint_verify.run(make_run("checkpoint_verify", {"restore.path": f"file://{tmp_path}/none"}))
    assert result.status == "mismatch"
    assert result.problem is not None
    assert result.problem.summary == f"file://{tmp_path}/none: no whole checkpoint is here"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    options = {"restore.path": "s3://bucket/run", "restore.clean_partial": True}
    result = checkpoint_verify.run(make_run("checkpoint_verify", options))
    assert result.status == "mismatch"
    assert result.problem is not None
    assert result.problem.summary.startswith("s3://bucket/run: ")
