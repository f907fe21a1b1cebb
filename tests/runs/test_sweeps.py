"""Sweeps: every point has a row, whatever became of the others; jobs get a folder, not the user's command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LOCAL_JOBS = "hydra/launcher=submitit_local"


def _measured(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("outputs/*/measure/*/record.json"))]


def test_a_point_that_does_not_fit_is_a_result(pilotkit_cli: Any, tmp_path: Path) -> None:
    limit = 60_000_000
    result = pilotkit_cli(
        "-m",
        "stage=measure",
        "train.micro_batch_size=1,2,4",
        "train.seq_len=128,256",
        f"hardware.memory_bytes={limit}",
        "measure.num_warmup_steps=1",
        "measure.num_measured_steps=3",
    )
    records = _measured(tmp_path)
    assert result.returncode == 0, result.stderr
    assert len(records) == 6
    assert {record["status"] for record in records} == {"ok", "does_not_fit"}
    largest = max(records, key=lambda r: r["config"]["train"]["micro_batch_size"] * r["config"]["train"]["seq_len"])
    assert largest["status"] == "does_not_fit"
    assert largest["metrics"]["memory_limit_bytes"] == limit
    assert largest["metrics"]["requested_bytes"] > 0
    assert "out of memory in a step" in largest["problem"]["summary"]


@pytest.mark.parametrize("launcher", [(), (LOCAL_JOBS,)], ids=["basic", "local jobs"])
def test_every_point_has_a_row_when_one_dies(
    pilotkit_cli: Any, tmp_path: Path, mine: tuple[str, ...], launcher: tuple[str, ...]
) -> None:
    result = pilotkit_cli("-m", "stage=measure", *mine, *launcher, "+model.kwargs.fault='',SIGKILL,raise")
    assert result.returncode == 1
    assert "3 points: 2 failed, 1 ok" in result.stdout
    assert "rank 0 was killed by signal 9 (SIGKILL)" in result.stdout
    assert "ValueError: bad row 17" in result.stdout
    assert sorted(record["status"] for record in _measured(tmp_path)) == ["failed", "failed", "ok"]


def test_a_job_that_dies_without_a_word_has_a_row(pilotkit_cli: Any, mine: tuple[str, ...]) -> None:
    result = pilotkit_cli("-m", "stage=measure", *mine, LOCAL_JOBS, "+model.kwargs.fault='','kill the driver',''")
    rows = [line for line in result.stdout.splitlines() if line.startswith(("ok ", "failed "))]
    assert result.returncode == 1
    assert [row.split()[0] for row in rows] == ["ok", "failed", "ok"]
    assert "crashed without a word" in rows[1]


def test_jobs_start_ranks_from_a_folder_and_not_from_the_command_line(
    pilotkit_cli: Any, tmp_path: Path, mine: tuple[str, ...]
) -> None:
    result = pilotkit_cli(
        "-m", "stage=pilot", "pilot.strategies=[ddp]", *mine, LOCAL_JOBS, "train.seq_len=32,64", "parallelism=ddp"
    )
    assert result.returncode == 0, result.stdout
    runs = sorted(tmp_path.glob("outputs/*/pilot/*"))
    records = [json.loads((run / "record.json").read_text()) for run in runs]
    assert [record["metrics"]["world_size"] for record in records] == [2, 2]
    assert sorted(record["config"]["train"]["seq_len"] for record in records) == [32, 64]
    assert [path.name for path in (tmp_path / "outputs").iterdir()] == ["default"], "one tree of runs, no second one"


def test_a_gate_that_fails_does_not_keep_the_next_point_from_running(pilotkit_cli: Any, tmp_path: Path) -> None:
    result = pilotkit_cli("-m", "stage=plan", "reservation=7d,30d")
    records = [json.loads(path.read_text()) for path in tmp_path.glob("outputs/*/plan/*/record.json")]
    assert result.returncode == 0
    assert sorted(record["config"]["reservation"]["name"] for record in records) == ["30d", "7d"]
    assert {record["details"]["verdict"]["verdict"] for record in records} == {"INCOMPLETE"}


@pytest.mark.parametrize("command", ["module", "script"])
def test_both_entry_points_submit_jobs(pilotkit_cli: Any, tmp_path: Path, command: str) -> None:
    if command == "module":
        result = pilotkit_cli("-m", "stage=lock", LOCAL_JOBS, "train.seed=1,2")
    else:
        script = Path(sys.executable).with_name("pilotkit")
        result = subprocess.run(
            [script, "-m", "stage=lock", LOCAL_JOBS, "train.seed=1,2"], cwd=tmp_path, capture_output=True, text=True
        )
    assert result.returncode == 0, result.stderr
    assert "2 points: 2 ok" in result.stdout


def test_a_job_records_what_was_true_at_submission(pilotkit_cli: Any, tmp_path: Path, mine: tuple[str, ...]) -> None:
    """A job's own environment is another one: what identifies the run is fixed before it starts."""
    result = pilotkit_cli(
        "-m",
        "stage=lock",
        *mine,
        LOCAL_JOBS,
        "train.seed=1,2",
        "+model.kwargs.fault=${oc.env:FLAVOUR}",
        "+hydra.job.env_set.FLAVOUR=later",
        env={"FLAVOUR": "now"},
    )
    assert result.returncode == 0, result.stdout
    records = [json.loads(path.read_text()) for path in tmp_path.glob("outputs/*/lock/*/record.json")]
    assert [record["config"]["model"]["kwargs"]["fault"] for record in records] == ["now", "now"]


@pytest.mark.parametrize("chdir", ["true", "false"])
def test_a_relative_path_means_the_folder_of_the_launch(pilotkit_cli: Any, tmp_path: Path, chdir: str) -> None:
    pilotkit_cli("stage=lock", "restore.path=ckpt", "data=text_folder", "data.path=.", f"hydra.job.chdir={chdir}")
    pilotkit_cli("-m", "stage=lock", "restore.path=ckpt", f"hydra.job.chdir={chdir}")
    paths = list(tmp_path.glob("outputs/*/lock/*/record.json"))
    assert len(paths) == 2
    for path in paths:
        assert json.loads(path.read_text())["config"]["restore"]["path"] == str(tmp_path / "ckpt")
