"""How much fits: the answer fits, and the next larger shape does not."""

from __future__ import annotations

import dataclasses
from functools import partial
from types import ModuleType

import pytest

from pilotkit.estimate.grid import fit
from pilotkit.estimate.inverse import device_counts, held_of, largest, largest_micro_batch, longest_sequence
from pilotkit.estimate.predict import Estimator


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7, 8, 99, 100])
def test_largest_is_found_whatever_it_is(limit: int) -> None:
    asked: list[int] = []

    def fits(number: int) -> bool:
        asked.append(number)
        return number <= limit

    assert largest(fits, most=100) == limit
    assert max(asked) <= 100
    assert len(asked) <= 15


def test_largest_never_asks_beyond_the_most() -> None:
    assert largest(lambda _number: True, most=100) == 100


@pytest.mark.parametrize(
    ("most", "per_node", "expected"),
    [(64, 8, [1, 2, 4, 8, 16, 32, 64]), (30, 6, [1, 2, 4, 6, 12, 24]), (3, 8, [1, 2])],
)
def test_devices_are_whole_nodes_beyond_one(most: int, per_node: int, expected: list[int]) -> None:
    assert list(device_counts(most=most, devices_per_node=per_node)) == expected


def test_answers_lie_at_the_edge_of_memory_or_of_the_model(scenarios: ModuleType) -> None:
    workload = dataclasses.replace(scenarios.LLAMA, build_model=partial(scenarios.build_llama, num_layers=2))
    estimator = Estimator(workload)
    held = held_of(estimator, fit(estimator), allocator="expandable")
    limit = held(5, 96) + 1
    found = largest_micro_batch(held, 96, limit=limit)
    assert found["held_bytes"] <= limit < held(found["micro_batch_size"] + 1, 96)
    assert found["bounded_by"] == "memory"
    assert largest_micro_batch(held, 96, limit=1)["micro_batch_size"] == 0
    longest = longest_sequence(held, 2, limit=limit, estimator=estimator)
    assert longest["held_bytes"] <= limit < held(2, longest["seq_len"] + 1)
    # The model takes so many positions and no more; a trace of it refuses the next one.
    unbounded = longest_sequence(lambda _size, _length: 0, 2, limit=limit, estimator=estimator)
    assert unbounded["bounded_by"] == "the model"
    assert unbounded["seq_len"] == 512
