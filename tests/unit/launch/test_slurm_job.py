"""What a signal means, by what Slurm says of the job at that moment. That Slurm says so: `tests/slurm`."""

from __future__ import annotations

import pytest

from pilotkit.errors import Interrupted
from pilotkit.launch import slurm_job
from pilotkit.launch.slurm_job import PointJob
from pilotkit.launch.slurm_view import OwnJob

JOB = PointJob("module:function", "/point", time_minutes=20, signal_delay_seconds=120, max_requeues=2)


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch):
    """`says(OwnJob(...), restarts=1)`: Slurm's answer, and how often this job was started before."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    def say(own: OwnJob | None, *, restarts: int = 0) -> None:
        monkeypatch.setattr(slurm_job, "view_own_job", lambda _: own)
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))

    return say


@pytest.mark.parametrize(
    ("own", "restarts", "status", "patience"),
    [
        (OwnJob("RUNNING", 0, False), 0, "preempted", 120),
        (OwnJob("COMPLETING", 1, False), 0, "preempted", 120),
        (OwnJob("COMPLETING", 1, False), 1, "cancelled", 0),
        (OwnJob("COMPLETING", 0, False), 0, "cancelled", 0),
        (None, 0, "cancelled", 0),
    ],
    ids=["sent by somebody", "requeued", "cancelled in attempt 2", "cancelled", "Slurm does not answer"],
)
def test_term(says, own: OwnJob | None, restarts: int, status: str, patience: float) -> None:
    says(own, restarts=restarts)
    found = JOB.meaning_of_term()
    assert (found.status, found.patience_seconds) == (status, patience)


@pytest.mark.parametrize(
    ("seconds_left", "is_preempted", "restarts", "told", "saved"),
    [
        (1000, False, 0, "preempted", "preempted"),
        (100, False, 0, "timed_out", "preempted"),
        (100, False, 2, "timed_out", "timed_out"),
        (100, True, 0, "preempted", "preempted"),
    ],
    ids=["far from the limit", "near it", "near it for the last time", "near it, and preempted"],
)
def test_usr2(says, seconds_left: float, is_preempted: bool, restarts: int, told: str, saved: str) -> None:
    """A run that could save at its limit goes on in another attempt, if there is one left."""
    says(OwnJob("RUNNING", restarts, is_preempted), restarts=restarts)
    found = JOB.meaning_of_usr2(seconds_left=seconds_left)
    assert found.status == told
    assert 0 < found.patience_seconds <= 120
    found.has_saved(7)
    assert found.status == saved
    assert str(found).endswith("; saved after step 7")


def test_a_job_that_slurm_has_requeued_is_not_requeued_again(says, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    asked: list[str] = []
    monkeypatch.setattr(slurm_job, "requeue", lambda job_id: asked.append(job_id) or "")

    def end(_folder: object) -> None:
        raise Interrupted("preempted", "told")

    monkeypatch.setattr(slurm_job.importlib, "import_module", lambda _: type("M", (), {"function": staticmethod(end)}))
    for own, restarts, count in (
        (OwnJob("COMPLETING", 1, False), 0, 0),
        (OwnJob("RUNNING", 0, False), 0, 1),
        (OwnJob("RUNNING", 2, False), 2, 1),
    ):
        says(own, restarts=restarts)
        JOB()
        assert asked == ["7"] * count, "not after the last allowed attempt either"
