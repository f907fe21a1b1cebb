"""Two studies side by side: every figure that both have, and which differences are more than noise.

Called by stage `report`. Compares newest records stage by stage; decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pilotkit.records.record import Record
from pilotkit.report.furniture import page_environment, page_furniture
from pilotkit.report.values import format_value, label_of

NOISE_SIGMAS = 2.0
"""A difference beyond so many standard errors is called more than noise."""
# Settings and what follows from them: a difference there is a choice, not a result.
GIVEN = "given"


@dataclass(frozen=True)
class Difference:
    """One figure of both. `noise` is the relative difference that chance alone explains, None when not known."""

    stage: str
    label: str
    one: str
    other: str
    change: str
    beyond_noise: bool
    noise: float | None


def differences(one: Mapping[str, Record], other: Mapping[str, Record]) -> list[Difference]:
    """Every metric that both have and that is not a setting, in the order of `one`."""
    found = []
    for stage, record in one.items():
        counterpart = other.get(stage)
        if counterpart is None:
            continue
        for metric, value in record.metrics.items():
            if metric in counterpart.metrics and record.origins.get(metric) != GIVEN:
                found.append(_difference(record, counterpart, metric, value, counterpart.metrics[metric]))
    return found


def _difference(one: Record, other: Record, metric: str, value: float, second: float) -> Difference:
    noise = _noise(one, other, metric)
    relative = (second - value) / value if value else (0.0 if second == value else math.inf)
    change = "the same" if relative == 0 else f"{100 * relative:+.1f} %" if math.isfinite(relative) else "from nothing"
    beyond = noise is not None and abs(relative) > noise
    texts = (format_value(metric, value), format_value(metric, second))
    return Difference(one.stage, label_of(metric), *texts, change, beyond, noise)


def _noise(one: Record, other: Record, metric: str) -> float | None:
    """Two standard errors of the difference of two means of steps; only times and rates of steps have one.

    sqrt(s1^2/n1 + s2^2/n2), with s the coefficient of variation of the steps and n their number.
    """
    prefix = next((p for p in ("ddp_", "fsdp_", "hsdp_", "single_") if metric.startswith(p)), "")
    if not metric.removeprefix(prefix).startswith(("step_seconds", "tokens_per_second")):
        return None
    variance = 0.0
    for record in (one, other):
        spread = record.metrics.get(f"{prefix}step_spread")
        count = record.metrics.get(f"{prefix}num_measured_steps")
        if spread is None or not count:
            return None
        variance += spread**2 / count
    return NOISE_SIGMAS * math.sqrt(variance)


def render_comparison(one: Sequence[Record], other: Sequence[Record], *, names: tuple[str, str]) -> str:
    """The page as text. `names` are those of the studies."""
    by_stage = [{record.stage: record for record in records} for records in (one, other)]
    rows = differences(*by_stage)
    verdicts = [
        str(((found["plan"].details.get("verdict") or {}).get("verdict") if "plan" in found else None) or "NO VERDICT")
        for found in by_stage
    ]
    return (
        page_environment()
        .get_template("compare.html.j2")
        .render(
            names=names,
            verdicts=verdicts,
            rows=rows,
            beyond=[row for row in rows if row.beyond_noise],
            only=[sorted(by_stage[0].keys() - by_stage[1].keys()), sorted(by_stage[1].keys() - by_stage[0].keys())],
            **page_furniture(),
        )
    )
