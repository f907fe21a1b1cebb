"""Planted faults: the proof fails, and names what was planted."""

from __future__ import annotations

import pytest

NAMES = (
    "dropped Adam moments",
    "scheduler off by one",
    "missing scaler",
    "loss scale that starts over",
    "random states not restored",
    "loader that starts over",
    "flipped bit in a shard",
    "flipped bit before the digest",
    "renamed parameter",
    "changed configuration",
)


@pytest.fixture(scope="module")
def trial(faults, tmp_path_factory):
    return faults.Trial(tmp_path_factory.mktemp("trial"))


def test_without_a_fault_everything_comes_back(trial):
    assert trial.record.status == "ok", trial.record.problem
    rows = {row["component"]: row["verdict"] for row in trial.record.details["comparison"]}
    assert set(rows.values()) == {"PASS"}
    for component in ("scaler restored", "random states restored", "optimizer restored", "next batches restored"):
        assert component in rows
    assert trial.record.metrics["max_loss_difference"] == 0.0
    assert trial.record.metrics["identical_runs_loss_deviation"] == 0.0


def test_every_fault_has_a_test(faults):
    assert tuple(faults.FAULTS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_planted_fault_is_caught_and_named(name, faults, trial):
    fault = faults.FAULTS[name]
    record = trial.with_fault(fault)
    assert record.status in ("mismatch", "failed", "refused")
    said = faults.named_by(record)
    if record.status == "mismatch":
        # The first row that fails is the one that was planted, not something that follows from it.
        assert said.startswith(fault.component), said
    elif record.status == "failed":
        assert record.details["comparison"][-1]["component"] == fault.component
    else:
        assert fault.component in said
    assert fault.part in said
