"""Whole runs of the command line: a model of the user's own that costs nothing, and what a run left on the disk."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]

# A user's module: trains in no time, and misbehaves on request.
MINE = """
import os
import signal
from types import SimpleNamespace

import torch
from torch import nn


class Mine(nn.Module):
    def __init__(self, width, fault, fault_rank, fault_step):
        super().__init__()
        self.embed, self.head = nn.Embedding(256, width), nn.Linear(width, 256)
        self.fault, self.fault_rank, self.fault_step, self.step = fault, fault_rank, fault_step, 0

    def forward(self, input_ids, labels):
        self.step += self.training
        if self.fault and self.step == self.fault_step and int(os.environ.get("RANK", 0)) == self.fault_rank:
            if self.fault == "raise":
                raise ValueError("bad row 17")
            if self.fault == "leave":
                os._exit(3)
            if self.fault == "kill the driver":
                os.kill(int(os.environ["PILOTKIT_DRIVER_PID"]), signal.SIGKILL)
            os.kill(os.getpid(), getattr(signal, self.fault, signal.SIGKILL))
        logits = self.head(self.embed(input_ids))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        # Not a class made on the spot: its tensors would live until the garbage collector comes by.
        return SimpleNamespace(loss=loss, logits=logits)


def build(width=8, fault="", fault_rank=0, fault_step=3):
    return Mine(width, fault, fault_rank, fault_step)
"""
TINY = ("model=custom", "model.factory=mine:build", "data=synthetic", "train.micro_batch_size=2", "train.seq_len=32")


@pytest.fixture
def mine(tmp_path: Path) -> tuple[str, ...]:
    """Overrides that train the user's module, which lies in the folder that commands start in."""
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    return TINY


def read_records(folder: Path, *, stage: str) -> list[dict[str, Any]]:
    """Records of one stage in the order of their start."""
    paths = sorted(folder.glob(f"outputs/*/{stage}/*/record.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


@dataclass
class Started:
    """A command line that goes on while the test looks at it."""

    process: subprocess.Popen[str]
    folder: Path

    def wait_for_step(self, phase: str, *, timeout: float = 180) -> None:
        """Until a phase has finished a step."""
        self.wait_for(lambda: any(self.folder.glob(f"**/phases/{phase}/progress.jsonl")), timeout=timeout)

    def wait_for(self, condition: Callable[[], bool], *, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, f"ended early:\n{self.process.communicate()}"
            assert time.monotonic() < deadline, f"nothing after {timeout} s"
            time.sleep(0.05)

    def workers(self) -> list[psutil.Process]:
        """Every process that works in this folder: torchrun, ranks, loader processes."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("PILOTKIT_RUN_DIR", "").startswith(str(self.folder)):
                    found.append(process)
        return found

    def rank(self, rank: int) -> psutil.Process:
        """The process of one rank, not one of its loader's."""
        ranks = [p for p in self.workers() if p.environ().get("RANK") == str(rank)]
        return min(ranks, key=lambda process: process.create_time())

    def end(self, *, timeout: float = 180) -> tuple[int, str]:
        """Wait for the command; its exit code and everything it printed."""
        stdout, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, stdout


@pytest.fixture
def start_pilotkit(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """`start_pilotkit(*arguments, env={})` starts a command and leaves it running; ended for certain afterwards."""
    started: list[Started] = []

    def start(*arguments: str, env: dict[str, str] | None = None) -> Started:
        process = subprocess.Popen(
            [sys.executable, "-m", "pilotkit", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            # A shell's background jobs ignore Ctrl-C, and hand that on.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        started.append(Started(process, tmp_path))
        return started[-1]

    yield start
    for run in started:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()
        for process in run.workers():
            with contextlib.suppress(psutil.Error):
                process.kill()
