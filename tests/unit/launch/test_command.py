"""The command lines of workers, word by word."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pilotkit.launch.command import describe_devices_command, worker_command


def test_one_process(odd_tmp_path: Path) -> None:
    command = worker_command(odd_tmp_path, phase="measure", nproc=1, torchrun=False)
    assert command == [sys.executable, "-m", "pilotkit.worker", str(odd_tmp_path), "measure"]


def test_torchrun() -> None:
    assert worker_command(Path("/out/run 1"), phase="pilot_ddp", nproc=4, torchrun=True) == [
        sys.executable,
        *("-m", "torch.distributed.run"),
        "--standalone",
        "--local-addr=127.0.0.1",
        "--nproc-per-node=4",
        "--max-restarts=0",
        *("-m", "pilotkit.worker", "/out/run 1", "pilot_ddp"),
    ]


def test_several_processes_without_torchrun_are_a_bug_of_ours() -> None:
    with pytest.raises(AssertionError, match="several processes need torchrun"):
        worker_command(Path("/r"), phase="measure", nproc=2, torchrun=False)


def test_the_probe() -> None:
    assert describe_devices_command() == [sys.executable, "-m", "pilotkit.worker", "--describe-devices"]
