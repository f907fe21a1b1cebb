"""Two plots of the plan: the probability to be done over days, and speed over the number of devices with its knee.

Called by `pilotkit.report.decision`. Draws what the record of `plan` holds and computes no figure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from pilotkit.report import svg
from pilotkit.units import format_chance, format_count

_LEFT, _RIGHT, _TOP, _BOTTOM = 8.0, 98.0, 28.0, 208.0


def probability_curve(
    curve: Sequence[Sequence[float]], *, reservations: Sequence[Mapping[str, Any]], target: float
) -> Markup:
    """Probability to be done (down, percent) over days (across), with a line at each reservation and at the target."""
    if len(curve) < 2:
        return Markup("")
    last = curve[-1][0]

    def x_of(days: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * days / last

    def y_of(probability: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * probability

    shapes = [svg.line("axis", x1=_LEFT, x2=_RIGHT, y1=y_of(share), y2=y_of(share)) for share in (0.0, 0.5, 1.0)]
    shapes += [
        svg.text(f"{share * 100:.0f}", x=_LEFT - 1, y=y_of(share) + 5, css="small muted", anchor="end")
        for share in (0.0, 0.5, 1.0)
    ]
    shapes.append(svg.line("mark dashed", x1=_LEFT, x2=_RIGHT, y1=y_of(target), y2=y_of(target)))
    shapes.append(svg.text(f"target {format_chance(target)}", x=_LEFT, y=_TOP - 10, css="small muted"))
    for item in reservations:
        x = x_of(item["days"])
        words = f"{item['name']}: {format_chance(item['probability'])}"
        css = "small" if item["fits"] else "small fault-text"
        shapes.append(svg.line("limit", x1=x, x2=x, y1=_TOP, y2=_BOTTOM))
        shapes.append(svg.text(words, x=x, y=_TOP - 10, css=css, anchor="middle" if x < 90 else "end"))
    for (day, share), (next_day, next_share) in itertools.pairwise(curve):
        shapes.append(svg.line("curve", x1=x_of(day), x2=x_of(next_day), y1=y_of(share), y2=y_of(next_share)))
    shapes.append(svg.text("day 0", x=_LEFT, y=_BOTTOM + 18, css="small muted"))
    shapes.append(svg.text(f"day {last:.0f}", x=_RIGHT, y=_BOTTOM + 18, css="small muted", anchor="end"))
    named = ", ".join(f"{item['name']} {format_chance(item['probability'])}" for item in reservations)
    label = f"Probability to be done over {last:.0f} days: {named}"
    return svg.svg(shapes, height=_BOTTOM + 26, label=label)


def scaling_curve(points: Sequence[Mapping[str, Any]], *, knee: Mapping[str, Any]) -> Markup:
    """Tokens per second over the number of devices, both as powers of two; the band shaded, the knee as a line."""
    shown = [point for point in points if point["tokens_per_second"] > 0]
    if len(shown) < 2:
        return Markup("")
    widest = math.log2(shown[-1]["num_devices"] / shown[0]["num_devices"])
    low = math.log2(min(point["low"] or point["tokens_per_second"] for point in shown))
    high = math.log2(max(point["high"] for point in shown))
    span = max(high - low, 0.5)

    def x_of(point: Mapping[str, Any]) -> float:
        return _LEFT + (_RIGHT - _LEFT) * math.log2(point["num_devices"] / shown[0]["num_devices"]) / widest

    def y_of(speed: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (math.log2(max(speed, 2.0**low)) - low) / span

    shapes = [svg.line("axis", x1=_LEFT, x2=_RIGHT, y1=_BOTTOM, y2=_BOTTOM)]
    for point in shown:
        shapes.append(svg.line("band", x1=x_of(point), x2=x_of(point), y1=y_of(point["low"]), y2=y_of(point["high"])))
    for here, beyond in itertools.pairwise(shown):
        ends = {"y1": y_of(here["tokens_per_second"]), "y2": y_of(beyond["tokens_per_second"])}
        shapes.append(svg.line("curve", x1=x_of(here), x2=x_of(beyond), **ends))
    for point in shown:
        if point["origin"] != "projected":
            title = f"{point['num_devices']} devices: {format_count(point['tokens_per_second'])} tokens/s, measured"
            shapes.append(svg.dot("data", x=x_of(point), y=y_of(point["tokens_per_second"]), radius=5, title=title))
    at = next((point for point in shown if point["num_devices"] == knee["num_devices"]), None)
    if at is not None:
        x = x_of(at)
        shapes.append(svg.line("limit", x1=x, x2=x, y1=_TOP, y2=_BOTTOM))
        side: svg.Anchor = "end" if x > 70 else "start" if x < 20 else "middle"
        words = f"knee: {knee['num_devices']} ({knee['cause']})" if knee["cause"] != "none" else "no knee up to here"
        shapes.append(svg.text(words, x=x, y=_TOP - 10, css="small", anchor=side))
    first, last = shown[0]["num_devices"], shown[-1]["num_devices"]
    shapes.append(svg.text(f"{first} device{'s' * (first > 1)}", x=_LEFT, y=_BOTTOM + 18, css="small muted"))
    shapes.append(svg.text(f"{last} devices", x=_RIGHT, y=_BOTTOM + 18, css="small muted", anchor="end"))
    label = f"Tokens per second from {first} to {last} devices; {knee['sentence']}"
    return svg.svg(shapes, height=_BOTTOM + 26, label=label)
