"""Loss over steps: of each precision beside chance, and of the run that was stopped beside the one that never was.

Called by `pilotkit.report.sections` and `pilotkit.report.numerics`. Draws what the records hold and computes no figure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pilotkit.records.record import Record
from pilotkit.report import svg
from pilotkit.report.values import record_href
from pilotkit.report.view import Figure

_LEFT, _RIGHT, _TOP, _BOTTOM = 8.0, 98.0, 12.0, 172.0
_REFERENCE, _CANDIDATE, _CHANCE = 0, 1, 7


@dataclass(frozen=True)
class Series:
    """One run: (step, loss) pairs; a loss that was not finite is left out and shows as a gap. `colour` is a number."""

    name: str
    points: Sequence[tuple[int, float]]
    colour: int
    dots: bool = False


def loss_curves(series: Sequence[Series]) -> Markup:
    """Loss (down) over the number of the step (across), each run a line or, where it lies upon another, dots."""
    every = [point for one in series for point in one.points]
    if len(every) < 2:
        return Markup("")
    first, last = min(step for step, _ in every), max(step for step, _ in every)
    low, high = min(loss for _, loss in every), max(loss for _, loss in every)
    span = (high - low) or abs(high) * 0.01 or 1.0

    def x_of(step: int) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (step - first) / max(last - first, 1)

    def y_of(loss: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (loss - low) / span

    shapes = [svg.line("axis", x1=_LEFT, x2=_RIGHT, y1=y, y2=y) for y in (_TOP, _BOTTOM)]
    shapes += [
        svg.text(f"{loss:.4g}", x=_LEFT - 1, y=y_of(loss) + 5, css="small muted", anchor="end") for loss in {low, high}
    ]
    for one in series:
        for (step, loss), (next_step, next_loss) in itertools.pairwise(one.points):
            if not one.dots and next_step == step + 1:
                ends = {"y1": y_of(loss), "y2": y_of(next_loss)}
                shapes.append(svg.line(f"curve stroke-{one.colour}", x1=x_of(step), x2=x_of(next_step), **ends))
        if one.dots:
            shapes += [
                svg.dot(f"series-{one.colour}", x=x_of(step), y=y_of(loss), radius=4, title=f"step {step}: {loss:.4g}")
                for step, loss in one.points
            ]
    shapes.append(svg.text(f"step {first}", x=_LEFT, y=_BOTTOM + 18, css="small muted"))
    shapes.append(svg.text(f"step {last}", x=_RIGHT, y=_BOTTOM + 18, css="small muted", anchor="end"))
    names = ", ".join(one.name for one in series if one.points)
    return svg.svg(shapes, height=_BOTTOM + 26, label=f"Loss over steps {first} to {last}: {names}")


def precision_series(record: Record) -> list[Series]:
    """fp32, the candidate, and fp32 on other rows, which shows how far apart chance alone brings two runs."""
    reference: Mapping[str, Any] = record.details.get("reference") or {}
    candidate: Mapping[str, Any] = (record.details.get("candidate") or {}).get("candidate") or {}
    name = str((record.details.get("precision") or {}).get("name") or "candidate")
    chance = [
        Series("fp32, other rows", _numbered(one.get("losses") or ()), _CHANCE) for one in reference.get("noise") or ()
    ]
    fp32 = Series("fp32", _numbered((reference.get("reference") or {}).get("losses") or ()), _REFERENCE)
    other = Series(name, _numbered(candidate.get("losses") or ()), _CANDIDATE, dots=True)
    return [*chance, fp32, other]


def precision_losses(record: Record, *, page_dir: Path) -> Figure | None:
    """The plot of `precision_series`, the candidate as dots; None where the record has no losses."""
    return _figure("Loss by precision", precision_series(record), record=record, page_dir=page_dir)


def restored_series(record: Record) -> list[Series]:
    """The run that never stopped as a line; before the stop and after it as dots on it."""
    steps: Mapping[str, Sequence[Mapping[str, Any]]] = record.details.get("steps") or {}
    names = {"uninterrupted": "never stopped", "before": "before the stop", "after": "restored"}
    return [
        Series(words, _points(steps.get(f"restore_{name}") or ()), colour, dots=name != "uninterrupted")
        for colour, (name, words) in enumerate(names.items())
    ]


def restored_losses(record: Record, *, page_dir: Path) -> Figure | None:
    """The plot of `restored_series`; None where the record has no losses."""
    return _figure("Loss before and after the restore", restored_series(record), record=record, page_dir=page_dir)


def _figure(title: str, series: Sequence[Series], *, record: Record, page_dir: Path) -> Figure | None:
    shown = [one for one in series if one.points]
    plot = loss_curves(shown)
    if not plot:
        return None
    legend = [(one.colour, one.name, f"{one.points[-1][1]:.4g}") for one in shown]
    return Figure(title, plot, "measured", record_href(record, page_dir=page_dir), list(dict.fromkeys(legend)))


def _numbered(losses: Sequence[Any]) -> list[tuple[int, float]]:
    return _finite(enumerate(losses, 1))


def _points(steps: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    return _finite((int(step["step"]), step.get("loss")) for step in steps)


def _finite(pairs: Any) -> list[tuple[int, float]]:
    """Records hold None, or text such as `nan`, where a loss was not finite."""
    return [(step, float(loss)) for step, loss in pairs if isinstance(loss, int | float) and math.isfinite(float(loss))]
