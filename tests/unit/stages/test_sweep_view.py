"""What is told about a sweep: after its submission, and of one that ran on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotkit.errors import RecordError
from pilotkit.launch.follow import find_any_truths
from pilotkit.records.frontiers import Frontier, FrontierRow, read_frontier, write_frontier
from pilotkit.records.points import Point, write_point
from pilotkit.records.sweeps import Sweep, SweepArray, SweepPoint, any_sweep_dirs
from pilotkit.stages.sweep_view import submission_lines

GONE = 2**22 + 1  # above the largest process id


@pytest.mark.parametrize(
    ("minutes", "words"),
    [
        (5, "a limit of 5 minutes is short: submitit would never queue such a job again"),
        (5, "in its last 210 s any other SIGUSR2 is taken for the time limit"),
        (3, "from its start any other SIGUSR2 is taken for the time limit"),
        (11, None),
    ],
)
def test_short_jobs_are_pointed_out(minutes: int, words: str | None) -> None:
    array = SweepArray("", "job", 1, {"time": minutes, "signal_delay_s": 120}, job_id="7")
    sweep = Sweep("s", "2026", "submitted", "measure", "me", "login", "/launch", arrays=[array])
    sweep.points = [SweepPoint(0, [], array=0, job_id="7")]
    text = "\n".join(submission_lines(sweep, Path("/sweep")))
    assert (words in text) if words else ("is short" not in text)


def test_a_sweep_that_ran_here(tmp_path: Path) -> None:
    folder = tmp_path / "study" / "sweeps" / "20260101-000000"
    write_point(folder / "0", Point(0, ["a=1"], problem="a=1 is wrong", is_config_problem=True))
    write_point(folder / "1", Point(1, ["a=2"], driver_pid=GONE))
    _, truths, complaint = find_any_truths(folder)
    assert [(truth.status, truth.cause) for truth in truths] == [
        ("refused", "a=1 is wrong"),
        ("failed", "its process ended without a word"),
    ]
    assert complaint == ""
    assert any_sweep_dirs(tmp_path, name="study") == [folder]
    with pytest.raises(RecordError, match="is not the folder of a sweep"):
        find_any_truths(tmp_path)


def test_what_a_search_found_comes_back(tmp_path: Path) -> None:
    assert read_frontier(tmp_path) is None
    frontier = Frontier("train.seq_len", [1, 2], 2, 4, [FrontierRow(["a=1"], 1, 2, "1 (2 does not fit)")])
    write_frontier(tmp_path, frontier)
    assert read_frontier(tmp_path) == frontier
    assert frontier.lines() == [("a=1", "1 (2 does not fit)")]
