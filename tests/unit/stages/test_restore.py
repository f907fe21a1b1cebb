"""Stage `restore`: which phases are started, what is kept of them, and how a difference is told.

The comparison itself is tested in `tests/unit/decide/test_continuation.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from pilotkit.decide.continuation import COMPONENTS
from pilotkit.launch.outcome import Outcome
from pilotkit.records.record import Failure
from pilotkit.stages import restore
from pilotkit.stages.run import Run

MakeRun = Callable[..., Run]
PHASES = ("restore_uninterrupted", "restore_before", "restore_after")


def step(number: int) -> dict[str, Any]:
    return {"step": number, "loss": 5.0 / number, "grad_norm": 1.0, "lr": 0.1, "row_ids": [[number]], "skipped": False}


@pytest.fixture
def results() -> dict[str, dict[str, Any]]:
    """Two steps before the save, two after it, by phase; no two phases share an object."""
    state = {component: {"rank 0": {"part": component}} for component in COMPONENTS}
    end = {"seam": state, "end": state, "eval_loss": 1.0, "sketches": {}}
    found = {
        "restore_uninterrupted": {"steps": [step(number) for number in (1, 2, 3, 4)], **end},
        "restore_before": {
            "steps": [step(1), step(2)],
            "seam": state,
            "next_batches": {},
            "metrics": {"checkpoint_bytes": 7, "checkpoint_save_seconds": 0.25},
        },
        "restore_after": {
            "steps": [step(3), step(4)],
            "next_batches": {},
            **end,
            "restored_step": 2,
            "restored_from": "/ckpt/step-2",
            "passed_over": [],
            "metrics": {"checkpoint_load_seconds": 0.5, "restart_seconds": 3.0},
        },
    }
    return {phase: copy.deepcopy(result) for phase, result in found.items()}


def ended(results: dict[str, dict[str, Any]]) -> dict[str, Outcome]:
    return {phase: Outcome("ok", 1.0, result=result) for phase, result in results.items()}


def test_a_run_that_came_back(make_run: MakeRun, workers: Any, results: dict[str, dict[str, Any]]) -> None:
    workers.outcomes = ended(results)
    found = restore.run(make_run("restore"))
    assert workers.calls == [(phase, 2, True) for phase in PHASES]
    assert (found.status, found.problem) == ("ok", None)
    assert {row["verdict"] for row in found.details["comparison"]} == {"PASS"}
    assert found.metrics.values == {
        "num_steps": 3,
        "world_size": 2,
        "checkpoint_bytes": 7,
        "checkpoint_save_seconds": 0.25,
        "checkpoint_load_seconds": 0.5,
        "restart_seconds": 3.0,
        "uninterrupted_loss": 1.25,
        "continued_loss": 1.25,
        "max_loss_difference": 0.0,
        "identical_runs_loss_deviation": 0.0,
    }
    assert found.artifacts == {"checkpoint": "checkpoints"}
    assert set(found.details["steps"]) == set(PHASES)


def test_a_mismatch_is_told_by_its_first_component(
    make_run: MakeRun, workers: Any, results: dict[str, dict[str, Any]]
) -> None:
    results["restore_after"]["steps"][1] |= {"lr": 0.2, "loss": 1.5}
    workers.outcomes = ended(results)
    found = restore.run(make_run("restore"))
    assert found.status == "mismatch"
    assert found.problem == Failure(
        "learning rates after the restore: [0.1, 0.2] instead of [0.1, 0.1]", cause="also: losses after the restore"
    )
    assert found.metrics.values["max_loss_difference"] == 0.25


def test_a_step_that_the_loss_scaler_skipped(
    make_run: MakeRun, workers: Any, results: dict[str, dict[str, Any]]
) -> None:
    """Its loss and norm are infinite: text in the result, no number in the record, and equal all the same."""
    for phase, index in (("restore_uninterrupted", 3), ("restore_after", 1)):
        results[phase]["steps"][index] |= {"loss": "inf", "grad_norm": "inf"}
    workers.outcomes = ended(results)
    found = restore.run(make_run("restore"))
    assert (found.status, found.problem) == ("ok", None)
    assert not {"uninterrupted_loss", "continued_loss"} & set(found.metrics.values)
    results["restore_after"]["steps"][1] |= {"loss": 1.25, "grad_norm": None}
    found = restore.run(make_run("restore"))
    failed = {row["component"]: row["note"] for row in found.details["comparison"] if row["verdict"] == "FAIL"}
    assert failed == {
        "losses after the restore": "value 2 of 2: 1.25 instead of inf",
        "gradient norms after the restore": "1 values instead of 2",
    }


def test_one_process_for_a_run_on_one_device(
    make_run: MakeRun, workers: Any, results: dict[str, dict[str, Any]]
) -> None:
    workers.outcomes = ended(results)
    restore.run(make_run("restore", {"parallelism.strategy": "single", "parallelism.nproc_per_node": 1}))
    assert workers.calls == [(phase, 1, False) for phase in PHASES]


@pytest.mark.parametrize(
    "values", [{"restore.rtol": 1e-6}, {"train.deterministic": False}], ids=lambda v: next(iter(v))
)
def test_noise_is_measured_where_bits_may_differ(
    make_run: MakeRun, workers: Any, results: dict[str, dict[str, Any]], values: dict[str, Any]
) -> None:
    results["restore_repeated"] = copy.deepcopy(results["restore_uninterrupted"])
    workers.outcomes = ended(results)
    restore.run(make_run("restore", values))
    assert [phase for phase, _, _ in workers.calls] == [PHASES[0], "restore_repeated", *PHASES[1:]]


def test_a_given_checkpoint_is_only_loaded(make_run: MakeRun, workers: Any, results: dict[str, dict[str, Any]]) -> None:
    results["restore_after"]["passed_over"] = ["step-3: cut short"]
    workers.outcomes = ended(results)
    found = restore.run(make_run("restore", {"restore.path": "/ckpt"}))
    assert [phase for phase, _, _ in workers.calls] == ["restore_after"]
    assert (found.status, found.artifacts) == ("ok", {"checkpoint": "/ckpt/step-2"})
    assert [(row["component"], row["verdict"]) for row in found.details["comparison"]] == [
        ("checkpoint", "PASS"),
        ("a newer checkpoint", "NOT RUN"),
        ("continuation", "NOT RUN"),
    ]


def test_a_phase_that_fails_ends_it(make_run: MakeRun, workers: Any) -> None:
    workers.outcomes["restore_uninterrupted"] = Outcome("failed", 1.0, failure=Failure("rank 1: ValueError: x"))
    found = restore.run(make_run("restore"))
    assert (found.status, found.problem) == ("failed", Failure("rank 1: ValueError: x"))
    assert found.details["comparison"] == [
        {"component": "restore uninterrupted", "verdict": "FAIL", "note": "rank 1: ValueError: x"}
    ]
