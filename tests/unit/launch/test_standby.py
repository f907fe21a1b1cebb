"""The worker that waits: who wants one, when it is taken, and that it never stays behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotkit.launch import standby
from pilotkit.launch.command import worker_command
from pilotkit.launch.environment import worker_environment

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    yield
    standby.dismiss()


def variables(run_dir: Path) -> dict[str, str]:
    return worker_environment(os.environ, run_dir=run_dir, usable_cpus=2, nproc=2).variables


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["stage=estimate", "model=hf"], True),
        (["stage=measure", "stage=estimate"], True),
        (["stage=estimate", "stage=measure"], False),
        (["stage=measure"], False),
        ([], False),
        (["-m", "stage=estimate"], False),
        (["stage=estimate", "--cfg", "job"], False),
        (["stage=estimate", "cluster=slurm"], False),
        (["stage=estimate", "hydra/launcher=submitit_local"], False),
    ],
)
def test_who_wants_one(arguments: list[str], wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[object] = []
    monkeypatch.setattr(standby, "Standby", object)
    monkeypatch.setattr(standby, "_waiting", waiting)
    standby.start_for(arguments)
    monkeypatch.undo()
    assert bool(waiting) is wanted


def test_one_that_nobody_took_is_ended() -> None:
    standby.start_for(["stage=estimate"])
    (waiting,) = standby._waiting
    standby.dismiss()
    assert waiting.process.returncode is not None
    assert not standby._waiting


@pytest.mark.parametrize("change", ["variable", "folder", "program"])
def test_one_that_would_be_another_is_not_taken(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`TORCH_LOGS` is read when torch is imported, which has happened by then."""
    standby.start_for(["stage=estimate"])
    (waiting,) = standby._waiting
    if change == "variable":
        monkeypatch.setenv("TORCH_LOGS", "recompiles")
    command = worker_command(tmp_path, phase="estimate", nproc=1, torchrun=change == "program")
    folder = tmp_path.parent if change == "folder" else tmp_path
    assert standby.take(command, variables=variables(tmp_path), folder=folder, log=tmp_path / "log.txt") is None
    standby.dismiss()
    assert waiting.process.returncode is not None


def test_one_is_taken_and_is_the_worker(tmp_path: Path) -> None:
    """The run directory holds no `run.yaml`: the worker says so, in the log that it was told."""
    run_dir, log = tmp_path / "run", tmp_path / "log.txt"
    log.touch()
    standby.start_for(["stage=estimate"])
    command = worker_command(run_dir, phase="estimate", nproc=1, torchrun=False)
    process = standby.take(command, variables=variables(run_dir), folder=tmp_path, log=log)
    assert process is not None
    assert process.args == [sys.executable, "-m", "pilotkit.worker", "--standby"]
    assert process.wait(120) == 1
    assert "Traceback" in log.read_text()
    assert "run.yaml" in log.read_text()
