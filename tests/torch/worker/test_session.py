"""What a phase works with on one rank: threads, the limit of memory, a line to the driver."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

import psutil
import pytest
import torch

from pilotkit.records.run_dir import RunDir
from pilotkit.worker import session as module
from pilotkit.worker.session import open_session

MakeRunDir = Callable[..., RunDir]


def test_one_rank(make_run_dir: MakeRunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []
    monkeypatch.setattr(module, "limit_cpu_memory", limits.append)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    run_dir = make_run_dir({"hardware.memory_bytes": 123_456_789}, phase="measure")
    with open_session(run_dir, phase="measure") as session:
        assert (session.rank, session.world_size, session.device.name != "") == (0, 1, True)
        assert torch.get_num_threads() == 2
        assert session.arithmetic.tokens_per_step == 2 * 32
        assert session.highest(1.5) == 1.5
        assert session.gather([1, 2]) == [[1, 2]]
        session.progress(3, 4, label="größe")
    assert limits == [123_456_789]
    line = run_dir.phase("measure").progress.read_text(encoding="utf-8")
    assert json.loads(line) == {"label": "größe", "done": 3, "total": 4}


def test_only_rank_0_is_heard(make_run_dir: MakeRunDir) -> None:
    import dataclasses

    run_dir = make_run_dir(phase="measure")
    with open_session(run_dir, phase="measure") as session:
        dataclasses.replace(session, rank=1).progress(1, 2, label="x")
        # Rank 0 of several nodes may be on any; who is heard, and told to stop, is on the first.
        dataclasses.replace(session, node_rank=1).progress(1, 2, label="x")
        session.phase_dir.stop.touch()
        assert not dataclasses.replace(session, node_rank=1).is_told_to_stop()
        assert not run_dir.phase("measure").progress.exists()
        first = dataclasses.replace(session, rank=2, node_rank=0)
        first.progress(1, 2, label="x", step=7)
        assert first.is_told_to_stop()
    assert json.loads(run_dir.phase("measure").progress.read_text()) == {"label": "x", "done": 1, "total": 2, "step": 7}


def test_seconds_since_the_process_that_the_driver_started(
    make_run_dir: MakeRunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_session(make_run_dir(phase="measure"), phase="measure") as session:
        for process in (psutil.Process(), psutil.Process(os.getppid())):
            before = time.time()
            started = before - process.create_time()
            found = session.seconds_since_start()
            # The kernel counts starts in hundredths of a second.
            assert started - 0.02 <= found <= started + time.time() - before + 0.02
            monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")  # from now on it is the parent's


def test_an_error_goes_through(make_run_dir: MakeRunDir) -> None:
    run_dir = make_run_dir(phase="measure")
    with pytest.raises(ValueError, match="x"), open_session(run_dir, phase="measure"):
        raise ValueError("x")
