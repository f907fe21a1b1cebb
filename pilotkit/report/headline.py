"""What a reader looks for in the first half minute: hardware, how many, how long, how sure, how much.

Called by the page and by the Markdown. The same six facts under every verdict: what is not known is said to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pilotkit.report.values import format_hours, format_money
from pilotkit.units import format_chance

NOT_KNOWN = "not known"
NONE_HOLDS = "none holds it"


class Fact(NamedTuple):
    """One tile: its name, what it says, and below that a word with its figure (either may be empty)."""

    name: str
    text: str
    note: str = ""
    figure: str = ""


def headline(details: Mapping[str, Any]) -> list[Fact]:
    """Of the recommended option; where none is recommended, of the one that was asked about. `details`: a plan's."""
    options = details.get("options") or []
    asked = details.get("reservations") or []
    best = details.get("recommended")
    if not best and not options:
        return []
    chosen: Mapping[str, Any] = best or options[0]
    held = _reservation(asked, str(best["reservation"])) if best else {}
    # Without a recommendation nothing is to be reserved, and the longest reservation says what the run would take.
    looked_at: Mapping[str, Any] = best or (max(asked, key=lambda item: float(item["days"])) if asked else {})
    probability = looked_at.get("probability")
    target = (held or looked_at).get("target_probability")
    with_buffer = looked_at.get("target_hours")
    return [
        Fact("hardware", str(chosen["hardware"])),
        Fact("devices", str(chosen["num_devices"])),
        _reserved(best, asked),
        Fact(
            "run time, median",
            format_hours(looked_at["run_hours"]) if looked_at else NOT_KNOWN,
            "with buffer" if with_buffer is not None else "",
            format_hours(with_buffer) if with_buffer is not None else "",
        ),
        Fact(
            "done in time",
            NOT_KNOWN if probability is None else format_chance(float(probability)),
            "target" if target is not None else "",
            format_chance(float(target)) if target is not None else "",
        ),
        _cost(looked_at, str(details.get("currency") or "")),
    ]


def _reserved(best: Mapping[str, Any] | None, asked: list[Mapping[str, Any]]) -> Fact:
    if best:
        return Fact("reservation", f"{best['days']:g} days")
    if not asked:
        return Fact("reservation", NOT_KNOWN)
    longest = max(asked, key=lambda item: float(item["days"]))
    text = NONE_HOLDS if not any(item["fits"] for item in asked) else NOT_KNOWN
    return Fact("reservation", text, "longest", f"{longest['days']:g} days")


def _cost(looked_at: Mapping[str, Any], currency: str) -> Fact:
    if not looked_at:
        return Fact("cost", NOT_KNOWN)
    if looked_at.get("cost") is None:
        return Fact("cost", "no price given", "option", "prices.per_gpu_hour")
    return Fact("cost", format_money(looked_at["cost"], currency), "reservation", f"{looked_at['days']:g} days")


def _reservation(asked: list[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    return next((item for item in asked if item["name"] == name), {})
