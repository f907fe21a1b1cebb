"""The few SVG shapes that the plots are made of.

Called by `pilotkit.report.plots` and `pilotkit.report.heatmap`. Across, everything is in percent of the page's
width, down in pixels, and there is no viewBox: a plot narrows with the page while its text keeps its size. Colours
are CSS classes, so that the page's light, dark and print colours hold here too. Escapes all text; reads no record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from markupsafe import Markup

Anchor = Literal["start", "middle", "end"]


def rect(css: str, *, x: float, width: float, y: float, height: float, title: str = "", opacity: float = 1.0) -> Markup:
    """A bar: `x` and `width` in percent, `y` and `height` in pixels. `title` shows when the pointer rests on it."""
    return Markup(
        '<rect class="{}" x="{:.3f}%" width="{:.3f}%" y="{:.1f}" height="{:.1f}" fill-opacity="{:.2f}">{}</rect>'
    ).format(css, x, max(width, 0.0), y, height, opacity, _title(title))


def line(css: str, *, x1: float, x2: float, y1: float, y2: float) -> Markup:
    """A straight line; x in percent, y in pixels."""
    return Markup('<line class="{}" x1="{:.3f}%" x2="{:.3f}%" y1="{:.1f}" y2="{:.1f}"/>').format(css, x1, x2, y1, y2)


def dot(css: str, *, x: float, y: float, radius: float, title: str = "") -> Markup:
    """A point; x in percent, y and radius in pixels."""
    return Markup('<circle class="{}" cx="{:.3f}%" cy="{:.1f}" r="{:.1f}">{}</circle>').format(
        css, x, y, radius, _title(title)
    )


def text(content: str, *, x: float, y: float, css: str = "", anchor: Anchor = "start") -> Markup:
    """One line of text with its baseline at `y` pixels."""
    return Markup('<text class="{}" x="{:.3f}%" y="{:.1f}" text-anchor="{}">{}</text>').format(
        css, x, y, anchor, content
    )


def svg(shapes: Iterable[Markup], *, height: float, label: str) -> Markup:
    """The picture, as wide as its place and `height` pixels tall. `label` tells somebody who cannot see it."""
    return Markup('<svg class="plot" role="img" aria-label="{}" width="100%" height="{:.0f}">{}</svg>').format(
        label, height, Markup("").join(shapes)
    )


def _title(content: str) -> Markup:
    return Markup("<title>{}</title>").format(content) if content else Markup("")
