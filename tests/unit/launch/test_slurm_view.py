"""What Slurm's commands print, as they printed it (22.05), and what is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotkit.launch import slurm_view
from pilotkit.launch.follow import find_truths
from pilotkit.launch.slurm_view import Views, expand_tasks, is_inherited, parse_minutes, parse_sacct, parse_scontrol
from pilotkit.records.sweeps import Sweep, SweepArray, SweepPoint, read_sweep, write_sweep

SCONTROL = (
    "JobId=12 ArrayJobId=10 ArrayTaskId=0 JobName=x y JobState=FAILED Reason=NonZeroExitCode Dependency=(null) "
    "Restarts=1 ExitCode=0:9 EndTime=1700000000 NodeList=h100-1\n"
    "JobId=10 ArrayJobId=10 ArrayTaskId=2-3,5%2 JobName=x y JobState=PENDING Reason=Resources Dependency=(null) "
    "Restarts=0 ExitCode=0:0 EndTime=Unknown NodeList=(null)\n"
    "JobId=20 JobName=alone JobState=RUNNING Reason=None ExitCode=0:0 Restarts=0 EndTime=9999999999 NodeList=cpu-1\n"
    "JobId=30 ArrayJobId=30 ArrayTaskId=4294967294 JobState=CANCELLED Reason=JobHeldUser ExitCode=0:0 EndTime=Unknown\n"
)


def test_scontrol() -> None:
    jobs = parse_scontrol(SCONTROL)
    assert sorted(jobs) == ["10_0", "10_2", "10_3", "10_5", "20", "30"]
    failed = jobs["10_0"]
    assert (failed.state, failed.exit_code, failed.nodes, failed.restarts) == ("FAILED", "0:9", "h100-1", 1)
    assert failed.seconds_since_end is not None
    assert failed.seconds_since_end > 0
    assert (jobs["10_5"].state, jobs["10_5"].nodes, jobs["10_5"].seconds_since_end) == ("PENDING", "", None)


def test_an_array_that_was_cancelled_as_a_whole_speaks_for_its_tasks() -> None:
    views = Views(parse_scontrol(SCONTROL))
    found = views.of("30_7")
    assert found is not None
    assert found.state == "CANCELLED"
    assert views.of("31_7") is None
    assert views.of(None) is None


def test_sacct_takes_the_last_row_of_a_requeued_job() -> None:
    text = (
        "7_0|NODE_FAIL|1:0|h100-1|1700000000\n7_0|COMPLETED|0:0|h100-2|1700000100\n"
        "7_[1-2%2]|CANCELLED by 0|0:0|None assigned|Unknown\n"
    )
    jobs = parse_sacct(text)
    assert (jobs["7_0"].state, jobs["7_0"].restarts, jobs["7_0"].nodes) == ("COMPLETED", 1, "h100-2")
    assert (jobs["7_1"].state, jobs["7_2"].state, jobs["7_2"].nodes) == ("CANCELLED", "CANCELLED", "")


@pytest.mark.parametrize(
    ("text", "tasks"),
    [("0,3-5%2", [0, 3, 4, 5]), ("7", [7]), ("0-6:3,8-10:2%4", [0, 3, 6, 8, 10]), ("1,2,...", [1, 2])],
    ids=["ranges", "one", "steps", "cut short"],
)
def test_expand_tasks(text: str, tasks: list[int]) -> None:
    assert list(expand_tasks(text)) == tasks


@pytest.mark.parametrize(
    ("text", "minutes"), [("7-00:00:00", 10080), ("1:00:00", 60), ("30:00", 30), ("infinite", None), ("n/a", None)]
)
def test_parse_minutes(text: str, minutes: int | None) -> None:
    assert parse_minutes(text) == minutes


def test_inherited_variables() -> None:
    assert [
        name for name in ("SLURM_NTASKS", "SBATCH_ACCOUNT", "SQUEUE_FORMAT", "RANK") if not is_inherited(name)
    ] == []
    assert [name for name in ("SLURM_CONF", "PATH", "HOME", "SLURMISH") if is_inherited(name)] == []


def test_a_command_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login node whose controller is unreachable: Slurm's own commands try again for a minute and more."""
    command = tmp_path / "scontrol"
    command.write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(slurm_view, "TIMEOUT_SECONDS", 0.1)
    views = slurm_view.view_jobs(["7_0"])
    assert views.jobs == {}
    assert "scontrol gave no answer in" in views.complaint


def commands(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Slurm's commands as a broken installation has them, in front of those of this machine."""
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


FORGOTTEN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


@pytest.mark.parametrize(
    ("scripts", "complaint"),
    [
        ({"scontrol": "echo '<html>502</html>'"}, "scontrol: no job in its answer"),
        ({"scontrol": "exit 1"}, "scontrol: exit code 1"),
        ({"scontrol": FORGOTTEN, "sacct": "exit 1"}, "sacct: exit code 1"),
        ({"scontrol": FORGOTTEN, "sacct": "echo 'Slurm accounting storage is disabled' >&2; exit 1"}, ""),
    ],
    ids=["garbage", "silence", "accounting away", "no accounting"],
)
def test_an_answer_that_tells_nothing_is_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripts: dict[str, str], complaint: str
) -> None:
    """Without a complaint a job that is not in the answer is one that Slurm no longer knows."""
    commands(tmp_path, monkeypatch, **scripts)
    assert slurm_view.view_jobs(["7"]) == slurm_view.Views({}, complaint)


def test_a_submission_that_was_cut_short_is_not_judged_before_slurm_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The submitter was killed between Slurm's yes and the manifest; then the controller went away."""
    sweep = Sweep("s", "", "submitting", "measure", "me", "here", "/", arrays=[SweepArray("", "pilotkit-s-0", 1)])
    sweep.points = [SweepPoint(0, [], array=0)]
    folder = tmp_path / "sweep"
    folder.mkdir()
    write_sweep(folder, sweep)
    commands(tmp_path, monkeypatch, squeue="echo 'Unable to contact slurm controller' >&2; exit 1")
    (truth,), complaint = find_truths(folder, read_sweep(folder))
    assert (truth.status, complaint) == ("pending", "Unable to contact slurm controller")
    commands(tmp_path, monkeypatch, squeue="exit 0")
    (truth,), complaint = find_truths(folder, read_sweep(folder))
    assert (truth.status, truth.cause) == ("vanished", "no job was queued for it: its submission was cut short")
