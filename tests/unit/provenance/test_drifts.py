"""Every trial of benchmarks/lock_trials.py: each planted drift is named, and nothing that does not matter is."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

with mock.patch.object(sys, "path", [str(Path(__file__).parents[3] / "benchmarks"), *sys.path]):
    trials: Any = importlib.import_module("lock_trials")


@pytest.fixture(scope="module")
def made() -> Iterator[Any]:
    with trials.world() as made:
        yield made


def test_at_least_forty_different_ones() -> None:
    assert len({trial.name for trial in trials.TRIALS}) == len(trials.TRIALS) >= 40


@pytest.mark.parametrize("trial", trials.TRIALS, ids=lambda trial: trial.name)
def test_a_planted_drift_is_named(made: Any, trial: Any) -> None:
    fields = trials.run_trial(made, trial)
    assert trial.field in fields
    assert len(fields) <= 6, fields


def test_twenty_clean_repeats_are_quiet(made: Any) -> None:
    before = made.lock(*trials.BASE)
    assert [trials.run_repeat(made, number, before=before) for number in range(20)] == [[]] * 20


def test_made_twice_it_is_the_same_to_the_byte(made: Any) -> None:
    from pilotkit.provenance.lock import to_yaml

    assert to_yaml(made.lock(*trials.BASE)) == to_yaml(made.lock(*trials.BASE))
