"""The tables under the verdict: a chance is projected whatever its step is, and a cost without a price says so."""

from __future__ import annotations

from typing import Any

import pytest

from pilotkit.report.decision import _option_table, _reservation_table

RESERVATION: dict[str, Any] = {
    "name": "7d", "fits": True, "probability": 1.0, "run_hours": 1.0, "target_hours": 2.0, "hours_available": 168.0,
}  # fmt: skip


@pytest.mark.parametrize("origin", ["measured", "projected", "estimated"])
def test_a_chance_is_projected(origin: str) -> None:
    option = {"decision": "accepted", "label": "x", "origin": origin, "reason": "x: y", "outcomes": [_outcome(None)]}
    (row,) = _option_table([option], currency="", href=None).rows
    assert (row[2].text, row[2].origin) == ("over 99 %", "projected")
    (row,) = _reservation_table([{**RESERVATION, "cost": None}], currency="", href=None).rows
    assert (row[2].text, row[2].origin) == ("over 99 %", "projected")


@pytest.mark.parametrize(
    ("cost", "fits", "words"), [(None, True, "no price"), (2.5, True, "2.50 USD"), (2.5, False, "none")]
)
def test_a_cost_that_is_not_there_says_why(cost: float | None, fits: bool, words: str) -> None:
    outcome = {**_outcome(cost), "fits": fits}
    option = {"decision": "rejected", "label": "x", "origin": "measured", "reason": "y", "outcomes": [outcome]}
    (row,) = _option_table([option], currency="USD", href=None).rows
    assert row[3].text == words
    (row,) = _reservation_table([{**RESERVATION, "cost": cost}], currency="USD", href=None).rows
    assert row[6].text == ("no price" if cost is None else "2.50 USD")


def _outcome(cost: float | None) -> dict[str, Any]:
    return {"fits": True, "cost": cost, "probability": 1.0}
