"""Which row fails first, and with which words, for each way in which a run can come back wrong."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from pilotkit.decide import continuation
from pilotkit.decide.continuation import COMPONENTS, compare
from pilotkit.decide.shapes import compare_shapes


def _state(word: str) -> dict[str, Any]:
    return {component: {"rank 0": {"part": f"{component} {word}"}} for component in COMPONENTS}


def _step(number: int) -> dict[str, Any]:
    return {"step": number, "loss": 2.0 / number, "grad_norm": 1.0, "lr": 0.1, "row_ids": [[number]]}


@pytest.fixture
def phases() -> dict[str, dict[str, Any]]:
    """Two steps before the save and two after it, as three phases would leave them."""
    steps = [_step(number) for number in (1, 2, 3, 4)]
    batches = {"rank 0": {"row_ids": [3], "digests": {}}}
    end = {"end": _state("at 4"), "eval_loss": 1.0, "sketches": {}}
    found: dict[str, dict[str, Any]] = {
        "uninterrupted": {"steps": steps, "seam": _state("at 2"), **end},
        "before": {"steps": steps[:2], "seam": _state("at 2"), "next_batches": batches},
        "after": {"steps": steps[2:], "seam": _state("at 2"), "next_batches": batches, **end},
    }
    # As they come from disk: no two phases share an object.
    return {name: json.loads(json.dumps(phase)) for name, phase in found.items()}


def _first_failure(phases: dict[str, dict[str, Any]], *, rtol: float = 0.0) -> tuple[str, str] | None:
    rows = compare(phases["uninterrupted"], phases["before"], phases["after"], rtol=rtol, repeated=None)
    return next(((row["component"], row["note"]) for row in rows if row["verdict"] == "FAIL"), None)


def test_a_run_that_came_back_passes_every_row(phases: dict[str, dict[str, Any]]) -> None:
    rows = compare(phases["uninterrupted"], phases["before"], phases["after"], rtol=0.0, repeated=None)
    assert {row["verdict"] for row in rows} == {"PASS"}
    assert len(rows) == 1 + len(COMPONENTS) + 1 + 5 + len(COMPONENTS) + 1


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_that_was_not_restored_is_named_before_what_follows_from_it(
    component: str, phases: dict[str, dict[str, Any]]
) -> None:
    phases["after"]["seam"][component]["rank 0"]["part"] = "another"
    phases["after"]["end"]["parameters"]["rank 0"]["part"] = "another"
    phases["after"]["steps"][0]["loss"] = 7.0
    assert _first_failure(phases) == (f"{component} restored", "1 of 1 parts differ, first rank 0 part")


def test_a_rank_that_is_missing_differs(phases: dict[str, dict[str, Any]]) -> None:
    phases["after"]["seam"]["random states"] = {}
    found = _first_failure(phases)
    assert found == ("random states restored", "1 of 1 parts differ, first rank 0 part")


def test_other_batches_are_named(phases: dict[str, dict[str, Any]]) -> None:
    phases["after"]["next_batches"] = {"rank 0": {"row_ids": [9], "digests": {}}}
    found = _first_failure(phases)
    assert found is not None
    assert found[0] == "next batches restored"


def test_a_later_difference_is_named_when_everything_was_restored(phases: dict[str, dict[str, Any]]) -> None:
    phases["after"]["steps"][1]["lr"] = 0.2
    assert _first_failure(phases) == ("learning rates after the restore", "[0.1, 0.2] instead of [0.1, 0.1]")


def test_runs_that_differ_without_a_restore_are_told_first(phases: dict[str, dict[str, Any]]) -> None:
    phases["before"]["steps"][1]["loss"] = 1.1
    phases["before"]["seam"]["parameters"]["rank 0"]["part"] = phases["after"]["seam"]["parameters"]["rank 0"][
        "part"
    ] = "noise"
    found = _first_failure(phases)
    assert found is not None
    assert found[0] == "two identical runs"
    assert "first in parameters (rank 0 part)" in found[1]


def test_a_tolerance_has_the_measured_noise_beside_it(phases: dict[str, dict[str, Any]]) -> None:
    phases["before"]["steps"][1]["loss"] = 1.001
    phases["after"]["steps"][0]["loss"] *= 1.0005
    rows = compare(phases["uninterrupted"], phases["before"], phases["after"], rtol=1e-2, repeated=None)
    notes = {row["component"]: (row["verdict"], row["note"]) for row in rows}
    assert notes["two identical runs"] == ("PASS", "their losses differ by 0.001 at most, relative (measured)")
    assert notes["losses after the restore"] == (
        "PASS",
        "2 values, within 0.01: 0.0005 at most; two identical runs differ by 0.001",
    )


@pytest.mark.parametrize(("distance", "verdict"), [(0.001, "PASS"), (0.1, "FAIL")])
def test_parameters_within_a_tolerance_are_judged_by_their_distance(
    distance: float, verdict: str, phases: dict[str, dict[str, Any]]
) -> None:
    phases["after"]["end"]["parameters"]["rank 0"]["part"] = "rounded"
    phases["uninterrupted"]["sketches"] = {"rank 0": {"model.w": [2.0, 1.0, -1.0]}}
    phases["after"]["sketches"] = {"rank 0": {"model.w": [2.0, 1.0 + 2 * distance, -1.0 - 2 * distance]}}
    rows = compare(phases["uninterrupted"], phases["before"], phases["after"], rtol=1e-2, repeated=None)
    row = next(row for row in rows if row["component"] == "parameters at the end")
    assert row["verdict"] == verdict
    assert f"relative distance {distance:.2g} at most (estimated from sketches; rank 0 model.w)" in row["note"]


def test_what_is_no_matter_of_rounding_has_to_be_equal_in_spite_of_a_tolerance(
    phases: dict[str, dict[str, Any]],
) -> None:
    phases["after"]["end"]["random states"]["rank 0"]["part"] = "another"
    found = _first_failure(phases, rtol=0.1)
    assert found is not None
    assert found[0] == "random states at the end"


def test_noise_is_that_of_the_repeated_run_where_there_is_one(phases: dict[str, dict[str, Any]]) -> None:
    repeated = copy.deepcopy(phases["uninterrupted"])
    repeated["steps"][3]["loss"] *= 1.25
    assert continuation.noise_of(phases["uninterrupted"], phases["before"], None) == 0.0
    assert continuation.noise_of(phases["uninterrupted"], phases["before"], repeated) == 0.25


@pytest.fixture
def seen() -> dict[str, Any]:
    return {
        "state": {"parameters": {"w": "1"}, "optimizer": {"w.exp_avg": "2"}},
        "row_ids": [[1, 2], [3, 4]],
        "lrs": [0.1],
        "losses": [2.0, 1.0],
        "eval_loss": 1.0,
        "draws_random": False,
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": {"parameters": {"w": "9"}, "optimizer": {}}}, "parameters: 1 of 1 parts differ, first w"),
        (
            {"row_ids": [[1, 2], [2, 3]]},
            "data position: 1 rows skipped (first [4]), 0 others (first [])",
        ),
        ({"lrs": [0.2]}, "learning rates: [0.2] instead of [0.1]"),
        ({"eval_loss": 1.5}, "evaluation: deviates by 0.5, relative; restore.shape_rtol=0.001"),
        ({"losses": [2.0, float("nan")]}, "losses: deviate by inf, relative; restore.shape_rtol=0.001"),
    ],
    ids=["state", "rows", "schedule", "evaluation", "losses"],
)
def test_another_shape_that_differs_is_named(change: dict[str, Any], words: str, seen: dict[str, Any]) -> None:
    row = compare_shapes("ddp-2 to ddp-4", seen, {**seen, **change}, rtol=1e-3)
    assert row == {"component": "ddp-2 to ddp-4", "verdict": "FAIL", "note": words}


def test_losses_of_a_model_with_dropout_are_not_compared_across_shapes(seen: dict[str, Any]) -> None:
    row = compare_shapes("a", seen, {**seen, "losses": [5.0, 5.0], "draws_random": True}, rtol=1e-3)
    assert row["verdict"] == "PASS"
    assert row["note"] == (
        "2 parts bit for bit; the next 4 rows the same, in order; evaluation within 0, "
        "losses not compared, as the model draws random numbers"
    )
