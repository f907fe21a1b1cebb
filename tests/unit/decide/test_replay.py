"""Same, within noise, or different: which word each kind of number gets."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pilotkit.decide.replay import Tolerance, compare_results, overall

TOLERANCE = Tolerance(numerics=1e-4, time=0.25)
RESULT: dict[str, Any] = {
    "metrics": {
        "step_seconds": 1.0, "first_step_seconds": 5.0, "peak_allocated_bytes": 100, "peak_rss_bytes": 1000,
        "device_own_bytes": 1000, "runtime_overhead_bytes": 1000,
        "num_params": 7, "checkpoint_bytes": 9,
    },
    "steps": [{"step": 1, "loss": 2.5, "grad_norm": 1.5, "lr": 0.1, "row_ids": [[1, 2], [3, 4]], "skipped": False}],
    "fingerprints": {"parameters": {"rank 0": {"w": "ab"}}},
    "device": "cpu",
}  # fmt: skip


def changed(path: str, value: Any) -> dict[str, Any]:
    result: dict[str, Any] = copy.deepcopy(RESULT)
    *parents, name = path.split("/")
    place: Any = result
    for parent in parents:
        place = place[int(parent) if isinstance(place, list) else parent]
    place[name] = value
    return result


def test_equal_is_the_same() -> None:
    rows = compare_results(RESULT, RESULT, tolerance=TOLERANCE)
    assert overall(rows) == "same"
    assert {row.component for row in rows} == {
        "step time", "memory", "memory that the system counts", "counts", "losses", "gradient norms", "learning rate",
        "rows", "parameters",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "component", "verdict"),
    [
        ("steps/0/loss", 2.5 + 1e-7, "losses", "within noise"),
        ("steps/0/loss", 2.6, "losses", "different"),
        ("steps/0/grad_norm", 1.50001, "gradient norms", "within noise"),
        ("steps/0/lr", 0.1 + 1e-9, "learning rate", "different"),
        ("steps/0/row_ids", [[1, 2], [4, 3]], "rows", "different"),
        ("fingerprints/parameters/rank 0/w", "cd", "parameters", "different"),
        ("metrics/step_seconds", 1.2, "step time", "within noise"),
        ("metrics/step_seconds", 1.5, "step time", "different"),
        ("metrics/peak_allocated_bytes", 101, "memory", "different"),
        ("metrics/device_own_bytes", 1050, "memory that the system counts", "within noise"),
        ("metrics/runtime_overhead_bytes", 1050, "memory that the system counts", "within noise"),
        ("metrics/peak_rss_bytes", 1050, "memory that the system counts", "within noise"),
        ("metrics/num_params", 8, "counts", "different"),
    ],
)
def test_one_change(path: str, value: Any, component: str, verdict: str) -> None:
    rows = {row.component: row for row in compare_results(RESULT, changed(path, value), tolerance=TOLERANCE)}
    assert rows.pop(component).verdict == verdict
    assert {row.verdict for row in rows.values()} == {"same"}


@pytest.mark.parametrize(
    ("path", "value"), [("metrics/first_step_seconds", 50.0), ("device", "another"), ("metrics/checkpoint_bytes", 10)]
)
def test_what_no_comparison_rests_on(path: str, value: Any) -> None:
    assert overall(compare_results(RESULT, changed(path, value), tolerance=TOLERANCE)) == "same"


def test_a_digest_belongs_to_what_is_named_ahead_of_its_rank() -> None:
    one, other = ({"end": {"random_states": {"rank 1": {"torch": digit * 64}}}} for digit in "ab")
    (row,) = compare_results(one, other, tolerance=TOLERANCE)
    assert (row.component, row.verdict) == ("random states", "different")
    (row,) = compare_results({"batch": {"ids": "a" * 64}}, {"batch": {"ids": "b" * 64}}, tolerance=TOLERANCE)
    assert (row.component, row.verdict) == ("batch", "different")


def test_the_note_shows_both_values_and_where() -> None:
    (row,) = [
        r for r in compare_results(RESULT, changed("steps/0/loss", 2.6), tolerance=TOLERANCE) if r.component == "losses"
    ]
    assert row.note == "1 of 1 values differ, first steps/0/loss: 2.5 before, 2.6 now"


def test_a_part_that_is_gone_is_different() -> None:
    assert overall(compare_results(RESULT, {}, tolerance=TOLERANCE)) == "different"
