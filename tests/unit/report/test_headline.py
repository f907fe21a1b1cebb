"""The six facts under every verdict: a reader who pays finds each, or reads that it is not known."""

from __future__ import annotations

import pytest

from pilotkit.report.headline import Fact, headline
from pilotkit.units import format_chance

RESERVATIONS = [
    {"name": "7d", "days": 7.0, "fits": False, "probability": 0.004, "target_probability": 0.9, "run_hours": 400.0,
     "target_hours": 420.5, "cost": 1344.0},
    {"name": "30d", "days": 30.0, "fits": True, "probability": 0.93, "target_probability": 0.9, "run_hours": 400.0,
     "target_hours": 420.5, "cost": 5760.0},
]  # fmt: skip
OPTION = {"hardware": "h100", "num_devices": 8}
BEST = {**OPTION, "reservation": "30d", **{key: RESERVATIONS[1][key] for key in ("days", "probability", "run_hours")}}


def test_of_what_is_recommended() -> None:
    best = {**BEST, "target_hours": 420.5, "cost": 5760.0}
    assert headline({"recommended": best, "reservations": RESERVATIONS, "options": [OPTION], "currency": "USD"}) == [
        Fact("hardware", "h100"),
        Fact("devices", "8"),
        Fact("reservation", "30 days"),
        Fact("run time, median", "16 d 16 h", "with buffer", "17 d 12 h"),
        Fact("done in time", "93 %", "target", "90 %"),
        Fact("cost", "5,760.00 USD", "reservation", "30 days"),
    ]


def test_where_no_reservation_holds_the_run_the_longest_says_what_it_would_take() -> None:
    asked = [{**item, "fits": False, "cost": None} for item in RESERVATIONS]
    asked[1]["target_hours"] = None
    assert headline({"recommended": None, "reservations": asked, "options": [OPTION]}) == [
        Fact("hardware", "h100"),
        Fact("devices", "8"),
        Fact("reservation", "none holds it", "longest", "30 days"),
        Fact("run time, median", "16 d 16 h"),
        Fact("done in time", "93 %", "target", "90 %"),
        Fact("cost", "no price given", "option", "prices.per_gpu_hour"),
    ]


def test_where_no_time_is_known_each_fact_says_so() -> None:
    facts = headline({"recommended": None, "reservations": [], "options": [OPTION]})
    assert [fact.text for fact in facts] == ["h100", "8", *["not known"] * 4]


def test_without_a_plan_there_is_none() -> None:
    assert headline({}) == []


@pytest.mark.parametrize(
    ("probability", "words"),
    [(1.0, "over 99 %"), (0.991, "over 99 %"), (0.99, "99 %"), (0.5, "50 %"), (0.004, "under 1 %"), (0.0, "under 1 %")],
)
def test_draws_are_no_certainty(probability: float, words: str) -> None:
    assert format_chance(probability) == words
