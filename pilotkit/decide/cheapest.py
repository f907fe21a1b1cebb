"""The fewest devices that fit, and the cheapest hardware option that does. Pure arithmetic over what was traced.

Called by stage `estimate`. One trace a number of devices serves every accelerator: they differ in how much memory there
is, in how fast they are, and in what they cost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilotkit.decide.fit import Fit
from pilotkit.units import HOUR


@dataclass(frozen=True)
class Choice:
    """One hardware option at the fewest devices that fit; `num_devices` None: not even the most do."""

    hardware: str
    num_devices: int | None
    needed_bytes: int
    allowed_bytes: int
    strategy: str = ""
    tokens_per_second: float | None = None
    calibration: str = ""
    price_per_hour: float | None = None
    """Of all rented devices."""

    @property
    def price_per_billion_tokens(self) -> float | None:
        if self.price_per_hour is None or not self.tokens_per_second:
            return None
        return self.price_per_hour / HOUR / self.tokens_per_second * 1e9

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the record."""
        return {**dataclasses.asdict(self), "price_per_billion_tokens": self.price_per_billion_tokens}


def fewest_devices(
    by_devices: Sequence[Mapping[str, Any]], *, judge: Callable[[Mapping[str, Any]], Fit]
) -> tuple[Mapping[str, Any] | None, Fit | None]:
    """The first number of devices that fits, with its verdict; without one, the verdict on the most devices."""
    verdict = None
    for entry in sorted(by_devices, key=lambda entry: int(entry["num_devices"])):
        verdict = judge(entry)
        if verdict.fits:
            return entry, verdict
    return None, verdict


def cheapest(choices: Sequence[Choice]) -> tuple[Choice | None, str]:
    """The cheapest that fits, and by what: per token where every priced option has a speed, else per hour."""
    priced = [choice for choice in choices if choice.num_devices is not None and choice.price_per_hour is not None]
    if not priced:
        return None, "no option that fits has a price: give prices.per_gpu_hour.<hardware>"
    if all(choice.price_per_billion_tokens is not None for choice in priced):
        return min(priced, key=lambda choice: choice.price_per_billion_tokens or 0.0), "by price per token"
    return min(
        priced, key=lambda choice: choice.price_per_hour or 0.0
    ), "by price per hour: not every option has a speed"
