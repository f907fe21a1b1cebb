"""What activation checkpointing buys: memory saved for time added, and whether it still computes the same.

Called by stage `numerics` with what the worker found of each mode. Pure arithmetic over plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilotkit.units import format_bytes, format_seconds

PARTS = ("random_states", "losses", "grad_norms", "parameters")
WORDS = {
    "random_states": "random states",
    "losses": "losses",
    "grad_norms": "gradient norms",
    "parameters": "parameters",
}


@dataclass(frozen=True)
class Trade:
    """One mode against `none`: bytes saved at the peak, seconds added to the median step, and what differs.

    `differs` names the first thing that is not equal to the last bit; empty is proven equal. `saved_per_second` is
    bytes for each second added, None where no time was added beyond the spread of the steps.
    """

    mode: str
    saved_bytes: float
    added_seconds: float
    saved_per_second: float | None
    differs: str
    text: str


def trade(mode: str, found: Mapping[str, Any], none: Mapping[str, Any]) -> Trade:
    """Compare one mode with `none`: both as the worker's phase left them (`metrics`, `fingerprints`)."""
    metrics, base = found["metrics"], none["metrics"]
    saved = base["peak_allocated_bytes"] - metrics["peak_allocated_bytes"]
    added = metrics["step_seconds"] - base["step_seconds"]
    uncertain = 2 * (metrics["step_stddev_seconds"] ** 2 + base["step_stddev_seconds"] ** 2) ** 0.5
    rate = saved / added if added > uncertain and saved > 0 else None
    differs = next((part for part in PARTS if found["fingerprints"][part] != none["fingerprints"][part]), "")
    share = f"{100 * saved / base['peak_allocated_bytes']:.0f} %"
    text = f"saves {format_bytes(saved)} ({share}) of the peak" if saved > 0 else "saves no memory at the peak"
    time = (
        f"adds {format_seconds(added)} a step" if added > uncertain else "adds no time beyond the spread of the steps"
    )
    per = f", {rate / 1e12:.3g} GB for each ms" if rate is not None else ""
    equal = f"its {WORDS[differs]} differ" if differs else "computes the same to the last bit, random states included"
    return Trade(mode, saved, added, rate, differs, f"{mode} {text} and {time}{per}; {equal}")
