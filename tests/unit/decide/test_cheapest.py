"""The fewest devices, and the cheapest hardware at them."""

from __future__ import annotations

import pytest

from pilotkit.decide.cheapest import Choice, cheapest, fewest_devices
from pilotkit.decide.fit import Fit


def _judge(entry: dict[str, int]) -> Fit:
    return Fit(entry["bytes"], 100)


def test_fewest_devices_are_the_first_that_fit() -> None:
    entries = [{"num_devices": count, "bytes": 320 // count} for count in (8, 1, 4, 2)]
    entry, fit = fewest_devices(entries, judge=_judge)  # type: ignore[arg-type]
    assert entry is not None
    assert (entry["num_devices"], fit) == (4, Fit(80, 100))


def test_none_fits_is_told_with_the_most() -> None:
    entries = [{"num_devices": count, "bytes": 900 // count} for count in (1, 8)]
    assert fewest_devices(entries, judge=_judge) == (None, Fit(112, 100))  # type: ignore[arg-type]


def _choice(name: str, *, devices: int | None = 1, price: float | None = 1.0, rate: float | None = 100.0) -> Choice:
    return Choice(name, devices, 1, 2, tokens_per_second=rate, price_per_hour=price)


def test_the_cheapest_is_per_token_where_speeds_are_known() -> None:
    fast, slow = _choice("fast", price=3.0, rate=400.0), _choice("slow", price=1.0, rate=100.0)
    best, how = cheapest([slow, fast])
    assert best is fast
    assert how == "by price per token"
    # 3 an hour, 1.44 million tokens in it
    assert fast.price_per_billion_tokens == pytest.approx(3.0 / 1.44e6 * 1e9)
    best, how = cheapest([slow, _choice("fast", price=3.0, rate=None)])
    assert best is slow
    assert how.startswith("by price per hour")


def test_what_does_not_fit_or_has_no_price_is_not_the_cheapest() -> None:
    assert cheapest([_choice("small", devices=None), _choice("free", price=None)])[0] is None
