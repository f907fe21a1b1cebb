"""Bisection for the largest value that fits: every place where it may lie, and points without an answer."""

from __future__ import annotations

import math

import pytest

from pilotkit.decide.frontier import Bisection


def run(search: Bisection, largest: int) -> list[int]:
    """Answer every question of the search; returns what it asked."""
    asked = []
    while (value := search.next_value) is not None:
        asked.append(value)
        search.hear("ok" if value <= largest else "does_not_fit")
    return asked


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 64])
def test_finds_every_frontier_within_the_bound(count: int) -> None:
    values = list(range(1, count + 1))
    for largest in range(count + 1):
        search = Bisection(values)
        asked = run(search, largest)
        assert (search.largest or 0) == largest
        assert len(asked) == search.num_tried <= math.floor(math.log2(count)) + 1
        assert len(set(asked)) == len(asked), "nothing is asked twice"


@pytest.mark.parametrize(
    ("largest", "words"),
    [(0, "none: 1 does not fit"), (4, "4 (8 does not fit)"), (16, "16, the largest that was asked for")],
)
def test_words(largest: int, words: str) -> None:
    search = Bisection([1, 2, 4, 8, 16])
    run(search, largest)
    assert search.words() == words


def test_a_point_without_an_answer_ends_the_search() -> None:
    search = Bisection([1, 2, 4, 8, 16])
    search.hear("ok")
    search.hear("node_failed", "its node failed")
    assert search.next_value is None
    assert search.words() == "at least 4; 8 node failed: its node failed"
    lost = Bisection([1, 2])
    lost.hear("failed")
    assert (lost.largest, lost.words()) == (None, "not known; 1 failed")
