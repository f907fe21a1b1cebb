"""Is a lower precision good enough? Its run against fp32 on the same batches, beside how far apart chance puts fp32.

Called by stage `numerics` with what the worker found. Pure arithmetic over plain numbers and tolerances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Word = Literal["accept", "reject", "undecided"]
ACCEPT: Word = "accept"
REJECT: Word = "reject"
UNDECIDED: Word = "undecided"


@dataclass(frozen=True)
class Tolerances:
    """As in `numerics.*`: relative deviations, factors and shares."""

    loss_rtol: float
    max_grad_deviation: float
    reject_factor: float
    max_lost_updates: float
    max_skipped_steps: float


@dataclass(frozen=True)
class Judgement:
    """One word with full sentences; `figures` are what they rest on, flat and finite."""

    verdict: Word
    reasons: list[str]
    figures: dict[str, float] = field(default_factory=dict)


def judge_precision(
    reference: Mapping[str, Any],
    candidate: Mapping[str, Any],
    noise: Sequence[Mapping[str, Any]],
    *,
    name: str,
    tolerances: Tolerances,
) -> Judgement:
    """Compare a candidate's curve with fp32's. `noise`: further fp32 curves from the same weights, on other rows.

    One fault rejects. Without a sound reference, or when fp32 itself learnt less than chance, nothing can be accepted.
    """
    if reference["ended"] or reference["eval_loss"] is None:
        return Judgement(UNDECIDED, [without_finite_loss(reference, name="fp32 itself")])
    figures = {"lost_update_share": float(candidate["lost_share"]), "skipped_share": _share(candidate["skipped"])}
    faults = _faults(candidate, name=name, tolerances=tolerances, figures=figures)
    if candidate["ended"] or candidate["eval_loss"] is None:
        return Judgement(REJECT, [without_finite_loss(candidate, name=name), *faults], figures)
    doubts: list[str] = []
    passed: list[str] = []
    lists = {ACCEPT: passed, UNDECIDED: doubts, REJECT: faults}
    word, text = _judge_loss(reference, candidate, noise, name=name, tolerances=tolerances, figures=figures)
    lists[word].append(text)
    word, text = _judge_gradients(candidate, noise, tolerances=tolerances, figures=figures)
    lists[word].append(text)
    doubts += _doubts(reference, candidate, name=name, figures=figures)
    if faults:
        return Judgement(REJECT, faults + doubts, figures)
    if doubts:
        return Judgement(UNDECIDED, doubts + passed, figures)
    lost = f"{_percent(figures['lost_update_share'])} of the updates were rounded away"
    return Judgement(
        ACCEPT, [*passed, f"{lost}, {_percent(figures['skipped_share'])} of the steps were skipped."], figures
    )


def without_finite_loss(curve: Mapping[str, Any], *, name: str) -> str:
    """How a run ended, and where its first NaN or infinity was seen."""
    return f"{name} ended without a finite loss: {curve['ended']}{_first(curve)}."


def _faults(
    candidate: Mapping[str, Any], *, name: str, tolerances: Tolerances, figures: Mapping[str, float]
) -> list[str]:
    faults = []
    if figures["lost_update_share"] > tolerances.max_lost_updates:
        faults.append(
            f"{name} rounded {_percent(figures['lost_update_share'])} of the parameter updates away, "
            f"more than the {_percent(tolerances.max_lost_updates)} of numerics.max_lost_updates."
        )
    if figures["skipped_share"] > tolerances.max_skipped_steps:
        faults.append(
            f"the loss scaler skipped {_percent(figures['skipped_share'])} of the steps for an overflow"
            f"{_first(candidate)}, more than the {_percent(tolerances.max_skipped_steps)} of "
            "numerics.max_skipped_steps."
        )
    return faults


def _doubts(
    reference: Mapping[str, Any], candidate: Mapping[str, Any], *, name: str, figures: Mapping[str, float]
) -> list[str]:
    doubts = []
    curves_differ = any(reference[key] != candidate[key] for key in ("losses", "grad_norms", "eval_loss"))
    if not curves_differ and not any(candidate["grad_deviation"].values()):
        # TF32 on a processor, for one: the option is there and the hardware has no such products.
        doubts.append(
            f"{name} and fp32 are the same to the last bit here: this device computes both alike, and tells nothing of "
            "one that does not."
        )
    learnt = float(reference["losses"][0]) - float(reference["eval_loss"])
    if learnt <= figures["loss_noise"]:
        doubts.append(
            f"fp32 learnt {learnt:.3g} in {len(reference['losses'])} steps, no more than chance "
            f"({figures['loss_noise']:.3g}): too little to tell by; raise numerics.num_steps."
        )
    if candidate["stuck"]:
        stuck = candidate["stuck"]
        more = f" and {len(stuck) - 3} more" if len(stuck) > 3 else ""
        doubts.append(f"{name} rounds most updates of {', '.join(stuck[:3])}{more} away: they all but stand still.")
    return doubts


def _judge_loss(
    reference: Mapping[str, Any],
    candidate: Mapping[str, Any],
    noise: Sequence[Mapping[str, Any]],
    *,
    name: str,
    tolerances: Tolerances,
    figures: dict[str, float],
) -> tuple[Word, str]:
    expected = float(reference["eval_loss"])
    deviation = abs(float(candidate["eval_loss"]) - expected)
    spread = [abs(float(curve["eval_loss"]) - expected) for curve in noise if curve["eval_loss"] is not None]
    floor = max(spread, default=0.0)
    limit = max(floor, tolerances.loss_rtol * abs(expected))
    figures.update(
        loss_deviation=deviation,
        loss_noise=floor,
        max_step_loss_deviation=_largest_gap(reference["losses"], candidate["losses"]),
        max_grad_norm_deviation=_largest_gap(reference["grad_norms"], candidate["grad_norms"], relative=True),
    )
    text = (
        f"after {len(reference['losses'])} steps the evaluation loss of {name} is {deviation:.3g} off that of fp32 "
        f"({expected:.4f}); fp32 on other rows ends up to {floor:.3g} off"
    )
    return _word(deviation, limit, tolerances), f"{text}, accepted is {limit:.3g}."


def _judge_gradients(
    candidate: Mapping[str, Any],
    noise: Sequence[Mapping[str, Any]],
    *,
    tolerances: Tolerances,
    figures: dict[str, float],
) -> tuple[Word, str]:
    groups: Mapping[str, float | None] = candidate["grad_deviation"]
    known = {group: value for group, value in groups.items() if value is not None}
    if not known:
        return UNDECIDED, "no first gradient could be compared: all of them overflowed."
    worst = max(known, key=lambda group: known[group])
    figures["grad_deviation"] = known[worst]
    others = [curve["grad_deviation"].get(worst) for curve in noise]
    chance = max((value for value in others if value is not None), default=None)
    beside = ""
    if chance is not None:
        figures["grad_noise"] = chance
        beside = f"; other rows change it by {_percent(chance)}"
    text = f"the first gradient is at most {_percent(known[worst])} off that of fp32 (in {worst}){beside}"
    word = _word(known[worst], tolerances.max_grad_deviation, tolerances)
    return word, f"{text}, accepted is {_percent(tolerances.max_grad_deviation)}."


def _word(value: float, limit: float, tolerances: Tolerances) -> Word:
    if value <= limit:
        return ACCEPT
    return REJECT if value > tolerances.reject_factor * limit else UNDECIDED


def _largest_gap(one: Sequence[float | None], other: Sequence[float | None], *, relative: bool = False) -> float:
    """The largest distance of two curves at one step; steps without a finite value on both sides are passed over."""
    pairs = [(a, b) for a, b in zip(one, other, strict=False) if a is not None and b is not None]
    return max((abs(b - a) / (abs(a) if relative and a else 1.0) for a, b in pairs), default=0.0)


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0


def _first(curve: Mapping[str, Any]) -> str:
    """Where the first NaN or infinity was seen, as an aside."""
    events = curve["events"]
    if not events:
        return ""
    event = events[0]
    return f" (step {event['step']}: {event['kind']} in the {event['where']} of {event['module']})"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.3g} %"
