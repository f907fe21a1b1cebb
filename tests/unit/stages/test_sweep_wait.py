"""What ends the wait for a sweep: Ctrl-C asks, another signal leaves the jobs and keeps its exit code."""

from __future__ import annotations

import io
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from pilotkit.cli import Ended
from pilotkit.errors import EXIT_INTERRUPTED
from pilotkit.records.sweeps import Sweep, write_sweep
from pilotkit.stages import sweep_wait
from pilotkit.stages.console import Console


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`waiting(stop)`: the exit code and what was printed when `stop` arrives; without a terminal."""
    write_sweep(tmp_path, Sweep("s", "", "submitted", "measure", "me", "here", "/"))
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def run(stop: BaseException, printed: io.StringIO) -> int:
        def stopped(*_: object, **__: object) -> None:
            raise stop

        monkeypatch.setattr(sweep_wait, "wait_for_all", stopped)
        return sweep_wait.wait(tmp_path, Console(printed))

    return run


def test_ctrl_c_without_a_terminal_leaves_the_jobs(waiting: Any) -> None:
    printed = io.StringIO()
    assert waiting(KeyboardInterrupt(), printed) == EXIT_INTERRUPTED
    assert "the jobs go on" in printed.getvalue()


def test_another_signal_leaves_the_jobs_and_keeps_its_own_exit_code(waiting: Any) -> None:
    printed = io.StringIO()
    with pytest.raises(Ended) as ended:
        waiting(Ended(signal.SIGHUP), printed)
    assert ended.value.number == signal.SIGHUP
    assert "the jobs go on" in printed.getvalue()
