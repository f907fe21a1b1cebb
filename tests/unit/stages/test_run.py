"""What every stage works with: a phase in fresh processes, devices that are there, memory that was not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pilotkit.errors import ConfigError, StageRefused
from pilotkit.launch.outcome import Outcome
from pilotkit.records.record import Failure, PhaseRun
from pilotkit.records.run_dir import RunDir
from pilotkit.stages.run import Run, not_ok

MakeRun = Callable[..., Run]


def test_a_phase_is_kept_and_told(make_run: MakeRun, workers: Any, said: Callable[[Run], list[str]]) -> None:
    run = make_run("pilot")
    workers.outcomes["pilot_ddp"] = Outcome("does_not_fit", 12.5)
    assert run.work("pilot_ddp", nproc=2, torchrun=True).status == "does_not_fit"
    assert workers.calls == [("pilot_ddp", 2, True)]
    assert run.phases == [PhaseRun("pilot_ddp", 12.5, "does_not_fit")]
    assert run.threads == {
        "usable_cpus": 4,
        "usable_cpus_source": "affinity mask",
        "num_threads": 2,
        "threads_set_by": "pilotkit",
        "removed_variables": ["RANK"],
    }
    assert said(run) == ["  pilot_ddp: does not fit in 12.50 s"]


@pytest.mark.parametrize(("nproc", "device_count", "shares"), [(1, 2, 2), (4, 2, 4), (2, 2, 2)])
def test_one_process_gets_what_each_of_several_would(
    make_run: MakeRun, workers: Any, nproc: int, device_count: int, shares: int
) -> None:
    run = make_run("measure", {"hardware.device_count": device_count})
    workers.outcomes["measure"] = Outcome("ok", 1.0)
    run.work("measure", nproc=nproc)
    assert workers.shares == [shares]


def test_a_mistake_that_the_worker_found_is_the_users(make_run: MakeRun, workers: Any) -> None:
    problem = {"key": "model.factory", "value": "x:y", "allowed": "a callable", "fix": "name one", "factors": []}
    workers.outcomes["measure"] = Outcome("failed", 1.0, failure=Failure("rank 0: ..."))

    def leave(phase: str, run_dir: RunDir) -> None:
        folder = run_dir.phase(phase)
        folder.path.mkdir(parents=True)
        folder.error(0).write_text(json.dumps({"rank": 0, "problems": [problem]}), encoding="utf-8")

    workers.on_start = leave
    with pytest.raises(ConfigError) as caught:
        make_run("measure").work("measure")
    assert str(caught.value) == (
        "1 problem in the configuration; found by measure.\n"
        "1. model.factory=x:y\n    allowed: a callable\n    to mend: name one"
    )


def test_devices_that_are_not_there_refuse_the_stage(make_run: MakeRun, visible: Callable[..., None]) -> None:
    visible(0, problem="hardware=h100 is not on this node")
    with pytest.raises(StageRefused, match=r"^hardware=h100 is not on this node$"):
        make_run("measure").devices()


@pytest.mark.parametrize(
    ("requested", "summary"),
    [
        (1024**3, "out of memory in a step: the limit is 4.00 GiB; 1.00 GiB more was asked for"),
        (None, "out of memory in a step: the limit is 4.00 GiB"),
    ],
    ids=["size known", "size unknown"],
)
def test_out_of_memory_is_told_with_its_sizes(make_run: MakeRun, requested: int | None, summary: str) -> None:
    run = make_run("measure")
    failure = Failure("out of memory in a step", cause="c", rank=1, traceback="t", log="l")
    found = not_ok(run, Outcome("does_not_fit", 1.0, failure=failure, out_of_memory={"requested_bytes": requested}))
    assert found.status == "does_not_fit"
    assert found.problem == Failure(summary, cause="c", rank=1, traceback="t", log="l")
    sizes = {"memory_limit_bytes": 4 * 1024**3, "requested_bytes": requested}
    assert found.metrics.values == {name: size for name, size in sizes.items() if size}
    assert found.metrics.origins["memory_limit_bytes"] == "given"


def test_another_failure_is_handed_on_as_it_is(make_run: MakeRun) -> None:
    failure = Failure("rank 1: ValueError: x", rank=1)
    found = not_ok(make_run("measure"), Outcome("failed", 1.0, failure=failure), details={"card": []})
    assert (found.status, found.problem, found.metrics.values) == ("failed", failure, {})
    assert found.details == {"card": [], "threads": {}}
