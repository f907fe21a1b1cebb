"""From a phase's name to its outcome: the follower of its progress, and one start with a worker that is a stand-in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pilotkit.launch import worker
from pilotkit.launch.worker import _Follower, run_worker
from pilotkit.records.run_dir import PhaseDir, RunDir


def test_the_follower_hands_on_whole_lines_once(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    phase = PhaseDir(tmp_path)
    follower = _Follower(phase, seen.append)
    follower.read_more()
    assert seen == [], "there is no file yet"
    with open(phase.progress, "ab", buffering=0) as stream:
        for piece, count in [
            (b'{"label": "gr\xc3\xb6', 0),
            (b'\xc3\x9fe", "done": 1}\n{"do', 1),
            (b'ne": 2}\n{"done": 3}\n', 3),
            (b"", 3),
        ]:
            stream.write(piece)
            follower.read_more()
            assert len(seen) == count
    assert seen == [{"label": "größe", "done": 1}, {"done": 2}, {"done": 3}]


@pytest.mark.parametrize(
    ("code", "status", "result"),
    [
        ("open(phase / 'result.json', 'w').write('{\"x\": 1}')", "ok", {"x": 1}),
        ("raise SystemExit(1)", "failed", {}),
    ],
    ids=["ok", "failed"],
)
def test_one_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, status: str, result: dict[str, int]
) -> None:
    script = (
        "import os, pathlib; phase = pathlib.Path(os.environ['PILOTKIT_RUN_DIR'], 'phases', 'measure')\n"
        "open(phase / 'progress.jsonl', 'w').write('{\"done\": 1}\\n')\n"
        "print('threads', os.environ['OMP_NUM_THREADS'])\n"
    )
    asked: list[dict[str, Any]] = []

    def command(run_dir: Path, **arguments: Any) -> list[str]:
        asked.append({"run_dir": run_dir, **arguments})
        return [sys.executable, "-S", "-c", script + code]

    monkeypatch.setattr(worker, "worker_command", command)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    run_dir, seen = RunDir(tmp_path / "run"), list[dict[str, Any]]()
    outcome, environment = run_worker(
        run_dir,
        phase="measure",
        nproc=1,
        torchrun=False,
        shares=2,
        usable_cpus=6,
        launch_dir=tmp_path,
        timeout_seconds=60,
        on_progress=seen.append,
    )
    assert asked == [{"run_dir": tmp_path / "run", "phase": "measure", "nproc": 1, "torchrun": False}]
    assert (outcome.status, outcome.result) == (status, result)
    assert outcome.wall_seconds > 0
    assert seen == [{"done": 1}]
    assert environment.num_threads == 3
    assert run_dir.phase("measure").log.read_text(encoding="utf-8") == "threads 3\n"


def test_a_worker_that_saved_is_preempted_whoever_told_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os, pathlib; phase = pathlib.Path(os.environ['PILOTKIT_RUN_DIR'], 'phases', 'pilot_ddp')\n"
        "open(phase / 'result.json', 'w').write('{\"stopped_at\": 7}')\n"
    )
    monkeypatch.setattr(worker, "worker_command", lambda *_, **__: [sys.executable, "-S", "-c", code])
    outcome, _ = run_worker(
        RunDir(tmp_path / "run"),
        phase="pilot_ddp",
        nproc=1,
        torchrun=True,
        shares=1,
        usable_cpus=1,
        launch_dir=tmp_path,
        timeout_seconds=60,
        on_progress=lambda _: None,
        can_save=True,
    )
    assert outcome.status == "preempted"
    assert outcome.interruption is not None
    assert outcome.interruption.status == "preempted"
    assert str(outcome.interruption) == "somebody told the worker to save and end; saved after step 7"
