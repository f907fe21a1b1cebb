"""Which hardware, how many: every option of a study accepted or rejected, each with its reason and its numbers.

Called by stage `plan`. The rules, in order; the first that speaks decides:

1. what does not fit into memory is rejected;
2. an accelerator whose software stack was tried by `qualify` and found unfit is rejected;
3. what lacks evidence, a passed `qualify` included, is left open: it is neither taken nor turned down;
4. what is not done within any reservation with the target probability is rejected;
5. of the rest the one with the least `cost` (the least `gpu_hours` where a price is missing) is accepted. The
   cheapest A100 is the baseline that the others are priced against: an H100 has to pay for itself by a measured
   Hopper path, an H200 by memory that others lack or by the larger micro-batch it allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pilotkit.decide.option import Option
from pilotkit.units import HOUR, format_bytes, format_chance, format_seconds

Decision = Literal["accepted", "rejected", "open"]
BASELINE = "a100"
HOPPER_PRECISIONS = ("fp8",)
LARGER = 1.1
"""A device holds more than the baseline from here on: drivers alone make a few percent."""


@dataclass(frozen=True)
class Judged:
    """One option with what was decided and why, in a sentence."""

    option: Option
    decision: Decision
    reason: str


@dataclass(frozen=True)
class Choice:
    """All options, the accepted one first, then by `quantity` (`cost` or `gpu_hours`), then those without it."""

    judged: list[Judged]
    recommended: Option | None
    quantity: str
    currency: str


def choose(options: Sequence[Option], *, currency: str, baseline_memory_bytes: float | None = None) -> Choice:
    """Apply the rules. The order of `options` decides nothing but ties in every named quantity.

    `baseline_memory_bytes` is one A100's, for the words about larger memory.
    """
    judged_early = ((option, _early(option, baseline_memory_bytes)) for option in options)
    early = {id(option): found for option, found in judged_early if found is not None}
    holding = [option for option in options if id(option) not in early]
    priced = all(option.holding is not None and option.holding.cost is not None for option in holding)
    quantity = "cost" if priced and holding else "gpu_hours"
    ranked = sorted(holding, key=lambda option: _rank(option, quantity))
    best = ranked[0] if ranked else None
    baseline = next((option for option in ranked if option.hardware == BASELINE), None)
    judged = [_judge(option, best, baseline, options, quantity, currency) for option in ranked]
    rest = sorted(early.values(), key=lambda item: (item.decision != "open", item.option.label))
    return Choice([*judged, *rest], best, quantity, currency)


def _early(option: Option, baseline_memory_bytes: float | None) -> Judged | None:
    if option.fit.answer == "does not fit":
        return Judged(option, "rejected", f"{option.label} {option.fit.sentence}")
    unqualified = _unqualified(option, baseline_memory_bytes)
    if option.disqualified:
        return Judged(option, "rejected", f"{option.label}: {unqualified}: {option.disqualified}")
    if option.missing or not option.outcomes or option.fit.answer == "not known":
        lacking = option.missing or [f"memory: {option.fit.sentence}"]
        words = f"{unqualified}; " if unqualified else ""
        text = f"{option.label}: {words}not decided, evidence is missing ({'; '.join(lacking)})"
        return Judged(option, "open", text + _projected(option))
    if option.holding is None:
        longest = max(option.outcomes, key=lambda item: item.days)
        needs = "it never ends" if longest.target_hours is None else f"it needs {_hours(longest.target_hours)}"
        text = (
            f"{option.label}: done within {longest.name} with a probability of {format_chance(longest.probability)}, "
            f"the target is {format_chance(longest.target_probability)}; {needs} for that"
        )
        return Judged(option, "rejected", text)
    return None


def _unqualified(option: Option, baseline_memory_bytes: float | None) -> str:
    """What an accelerator has to offer and may not be taken for yet; empty for one that is qualified."""
    if option.qualified or option.device_type == "cpu":
        return ""
    memory, base = option.memory_bytes, baseline_memory_bytes
    larger = ""
    if memory and base and memory >= LARGER * base:
        larger = f"larger memory per device ({format_bytes(memory)} against {format_bytes(base)} of an A100), "
    return f"{larger}not qualified for this application"


def _projected(option: Option) -> str:
    """What a correction by other runs says of an option that was not measured."""
    if not option.projection:
        return ""
    chances = [f"{outcome.name} {format_chance(outcome.probability)}" for outcome in option.outcomes]
    done = f"; probability to be done: {', '.join(chances)}" if chances else ""
    return f"; {option.projection}{done}"


def _rank(option: Option, quantity: str) -> tuple[float, float, str]:
    held = option.holding
    assert held is not None
    first = held.cost if quantity == "cost" else option.gpu_hours
    return (first if first is not None else float("inf"), held.target_hours or 0.0, option.label)


def _judge(
    option: Option,
    best: Option | None,
    baseline: Option | None,
    options: Sequence[Option],
    quantity: str,
    currency: str,
) -> Judged:
    assert best is not None
    held = option.holding
    assert held is not None
    likely = format_chance(held.probability)
    facts = f"done within {held.name} with a probability of {likely}, {_amount(option, quantity, currency)}"
    why = _hardware_reason(option, baseline=baseline, options=options, quantity=quantity, currency=currency)
    if option is best:
        return Judged(option, "accepted", f"{option.label}: {facts}; {why}")
    over = _amount(best, quantity, currency)
    return Judged(option, "rejected", f"{option.label}: {facts}, against {over} of {best.label}; {why}")


def _hardware_reason(
    option: Option, *, baseline: Option | None, options: Sequence[Option], quantity: str, currency: str
) -> str:
    fitting = {other.hardware for other in options if other.fit.answer != "does not fit"}
    too_small = [other for other in options if other.hardware not in fitting]
    if option.hardware == "h200" and too_small:
        names = ", ".join(dict.fromkeys(other.hardware for other in too_small))
        return f"memory is what the others lack ({names}: {too_small[0].fit.sentence})"
    if option is baseline:
        return "the A100 is the baseline that the others are priced against"
    if all(other.hardware == option.hardware for other in options):
        return f"{option.hardware} is the only hardware of this study"
    if baseline is None:
        return "no A100 of this study is an option to price it against"
    paid = _pays(option, baseline, quantity=quantity, currency=currency)
    if option.hardware == "h200" and option.micro_batch_size > baseline.micro_batch_size:
        return f"its micro-batch of {option.micro_batch_size} against {baseline.micro_batch_size} {paid}"
    if option.hardware == "h100":
        if option.precision in HOPPER_PRECISIONS:
            return f"the {option.origin} {option.precision} {paid}"
        return f"without a measured Hopper path (fp8, attention kernel) its plain speed {paid}"
    return f"its speed {paid}"


def _pays(option: Option, baseline: Option, *, quantity: str, currency: str) -> str:
    """Whether a token costs less than on the baseline."""
    verb = "pays for itself" if _rank(option, quantity)[0] < _rank(baseline, quantity)[0] else "does not pay for itself"
    if option.tokens_per_second and baseline.tokens_per_second:
        ratio = option.tokens_per_second / option.num_devices / (baseline.tokens_per_second / baseline.num_devices)
        verb += f" ({ratio:.2f} times the tokens/s of an A100"
        return f"{verb}, {_amount(option, quantity, currency)} against {_amount(baseline, quantity, currency)})"
    return verb


def _amount(option: Option, quantity: str, currency: str) -> str:
    held = option.holding
    if quantity == "cost" and held is not None and held.cost is not None:
        return f"{held.cost:,.2f} {currency}"
    return f"{option.gpu_hours or 0.0:,.1f} GPU-hours"


def _hours(hours: float) -> str:
    return format_seconds(hours * HOUR)
