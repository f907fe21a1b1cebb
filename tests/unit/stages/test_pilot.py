"""Stage `pilot`: how many processes, what each strategy makes, and the written reason for one of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from pilotkit.errors import ConfigError, Problem, StageRefused
from pilotkit.launch.outcome import Outcome
from pilotkit.records import atomic
from pilotkit.records.record import Failure
from pilotkit.records.run_dir import RunDir
from pilotkit.stages import pilot
from pilotkit.stages.pilot import process_count
from pilotkit.stages.run import Run
from pilotkit.units import GIB

MakeRun = Callable[..., Run]


TIME: dict[str, Any] = {"settled": True, "recompilations": [], "compile_limits": []}


def ran(tokens_per_second: float, **more: Any) -> Outcome:
    metrics = {
        "tokens_per_second": tokens_per_second,
        "peak_allocated_bytes": GIB,
        "step_spread": 0.0,
        "num_measured_steps": 10,
    }
    return Outcome(
        "ok", 1.0, result={"metrics": {**metrics, **more}, "steps": [0.1], "devices": ["a", "b"], "time": TIME}
    )


OUT_OF_MEMORY = Outcome(
    "does_not_fit", 1.0, failure=Failure("out of memory in a step", rank=1), out_of_memory={"requested_bytes": 512}
)
CRASHED = Outcome("failed", 1.0, failure=Failure("rank 1: ValueError: x", rank=1, traceback="tb"))


@pytest.mark.parametrize(
    ("values", "visible_devices", "expected"),
    [
        ({}, 2, (2, 2)),
        ({"parallelism.nproc_per_node": 4}, 4, (4, 4)),
        ({"parallelism.strategy": "single", "parallelism.nproc_per_node": 1}, 2, (2, 2)),
        ({"parallelism.nproc_per_node": 2, "pilot.allow_idle_devices": True}, 4, (2, 4)),
    ],
    ids=["all there are", "as asked", "a single run is piloted on every device", "idle ones that are meant"],
)
def test_process_count(
    make_run: MakeRun, visible: Callable[..., None], values: dict[str, Any], visible_devices: int, expected: Any
) -> None:
    visible(visible_devices)
    assert process_count(make_run("pilot", values)) == expected


@pytest.mark.parametrize(
    ("asked", "visible_devices", "words"), [(4, 1, "asked 4, visible 1: "), (2, 4, "asked 2, visible 4: 2 would")]
)
def test_a_count_that_does_not_fit_starts_nothing(
    make_run: MakeRun, visible: Callable[..., None], workers: Any, asked: int, visible_devices: int, words: str
) -> None:
    visible(visible_devices)
    with pytest.raises(StageRefused, match=f"^{words}"):
        pilot.run(make_run("pilot", {"parallelism.nproc_per_node": asked}))
    assert workers.calls == []


def test_speed_scaling_and_the_reason(make_run: MakeRun, workers: Any) -> None:
    workers.outcomes = {"pilot_single": ran(100.0), "pilot_ddp": ran(180.0), "pilot_fsdp": ran(150.0)}
    found = pilot.run(make_run("pilot"))
    assert workers.calls == [("pilot_single", 1, False), ("pilot_ddp", 2, True), ("pilot_fsdp", 2, True)]
    assert found.status == "ok"
    metrics = found.metrics.values
    # 180 / (2 x 100) and 150 / (2 x 100)
    assert (metrics["ddp_scaling_efficiency"], metrics["fsdp_scaling_efficiency"]) == (0.9, 0.75)
    assert (metrics["world_size"], metrics["visible_devices"], metrics["idle_devices"]) == (2, 2, 0)
    assert "single_scaling_efficiency" not in metrics
    assert set(metrics) == set(found.metrics.origins)
    assert found.details["recommendation"]["strategy"] == "ddp"
    assert "180 tokens/s" in found.details["recommendation"]["reason"]
    assert found.details["strategies"]["ddp"] == {
        "status": "ok",
        "note": "",
        "steps": [0.1],
        "devices": ["a", "b"],
    }
    assert found.details["warnings"] == []


def test_what_stands_beside_the_numbers(
    make_run: MakeRun, workers: Any, visible: Callable[..., None], said: Callable[[Run], list[str]]
) -> None:
    visible(4)
    workers.outcomes = {"pilot_single": ran(100.0), "pilot_ddp": ran(180.0, num_measured_steps=4)}
    run = make_run("pilot", {"pilot.strategies": ["ddp"], "pilot.allow_idle_devices": True, "parallelism.num_nodes": 2})
    warnings = [
        "ddp: only 4 steps were counted",
        "2 of 4 devices stood idle",
        "one node of 2 was piloted: the network between nodes is not measured",
    ]
    assert pilot.run(run).details["warnings"] == warnings
    assert said(run)[-3:] == [f"  note: {warning}" for warning in warnings]


def test_one_strategy_that_does_not_run_leaves_the_other(make_run: MakeRun, workers: Any) -> None:
    workers.outcomes = {"pilot_single": OUT_OF_MEMORY, "pilot_ddp": OUT_OF_MEMORY, "pilot_fsdp": ran(150.0)}
    found = pilot.run(make_run("pilot"))
    assert found.status == "ok"
    assert "fsdp_scaling_efficiency" not in found.metrics.values, "there is nothing to compare with"
    assert found.details["strategies"]["ddp"] == {
        "status": "does_not_fit",
        "note": "out of memory in a step",
        "rank": 1,
        "traceback": "",
    }


def test_a_refusal_of_another_strategy_than_the_runs_own_is_an_answer(make_run: MakeRun, workers: Any) -> None:
    """A model that cannot be sharded is still piloted under ddp."""

    def refuse_to_shard(phase: str, run_dir: RunDir) -> None:
        if phase == "pilot_fsdp":
            problem = Problem("parallelism.strategy", "fsdp", "single or ddp", "scale has no dimension to cut")
            error = {"rank": 0, "summary": "1 problem", "problems": [dataclasses.asdict(problem)]}
            run_dir.phase(phase).path.mkdir(parents=True)
            atomic.write_json(run_dir.phase(phase).error(0), error)

    workers.outcomes = {"pilot_single": ran(100.0), "pilot_ddp": ran(180.0), "pilot_fsdp": CRASHED}
    workers.on_start = refuse_to_shard
    found = pilot.run(make_run("pilot"))
    assert found.status == "ok"
    assert found.details["recommendation"]["strategy"] == "ddp"
    assert found.details["strategies"]["fsdp"]["status"] == "refused"
    words = "fsdp was refused: parallelism.strategy=fsdp: scale has no dimension to cut"
    assert found.details["warnings"] == [words]
    with pytest.raises(ConfigError):
        pilot.run(make_run("pilot", {"parallelism.strategy": "fsdp"}))


@pytest.mark.parametrize(
    ("ddp", "fsdp", "status", "summary"),
    [
        (OUT_OF_MEMORY, OUT_OF_MEMORY, "does_not_fit", "out of memory in a step: the limit is 4.00 GiB; 512 B more"),
        (OUT_OF_MEMORY, CRASHED, "failed", "rank 1: ValueError: x"),
        (CRASHED, OUT_OF_MEMORY, "failed", "rank 1: ValueError: x"),
        (Outcome("timed_out", 1.0), CRASHED, "timed_out", "ddp: timed_out"),
    ],
    ids=["neither fits", "the second crashed", "the first crashed", "no reason given"],
)
def test_no_strategy_ran(
    make_run: MakeRun, workers: Any, ddp: Outcome, fsdp: Outcome, status: str, summary: str
) -> None:
    workers.outcomes = {"pilot_single": ran(1.0), "pilot_ddp": ddp, "pilot_fsdp": fsdp}
    found = pilot.run(make_run("pilot"))
    assert found.status == status
    assert found.problem is not None
    assert found.problem.summary.startswith(summary)
    assert found.details["recommendation"]["strategy"] is None
    assert found.details["recommendation"]["reason"].startswith("no strategy ran: ddp ")


def test_a_crash_alone_ends_the_pilot(make_run: MakeRun, workers: Any) -> None:
    workers.outcomes = {"pilot_single": CRASHED}
    found = pilot.run(make_run("pilot"))
    assert (found.status, found.problem) == ("failed", CRASHED.failure)
    assert workers.calls == [("pilot_single", 1, False)]
