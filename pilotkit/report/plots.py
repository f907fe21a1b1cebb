"""The plots of the page, each a function from numbers to one inline SVG.

Called by `pilotkit.report.sections`. Takes bytes, seconds and counts; draws what it is given and computes no figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from pilotkit.report import svg
from pilotkit.units import format_bytes, format_count, format_seconds

NUM_COLOURS = 10
"""How many series colours the style sheet has: `.series-0` and up in plots, `.fill-0` and up in legends."""


def step_strip(steps: Sequence[float], *, median: float | None, p95: float | None) -> Markup:
    """Every measured step as a dot, in seconds over its number, with lines at the median and the 95th percentile."""
    if not steps:
        return Markup("")
    every = [*steps, *(value for value in (median, p95) if value is not None)]
    low, high = min(every), max(every)
    margin = (high - low) * 0.1 or high * 0.05 or 1.0
    top, bottom = 28.0, 118.0

    def y_of(seconds: float) -> float:
        return bottom - (seconds - low + margin) / (high - low + 2 * margin) * (bottom - top)

    shapes = [svg.line("axis", x1=0, x2=100, y1=bottom, y2=bottom)]
    if median is not None:
        shapes.append(svg.line("mark", x1=0, x2=100, y1=y_of(median), y2=y_of(median)))
        shapes.append(svg.text(f"line: median {format_seconds(median)}", x=0, y=14, css="small"))
    if p95 is not None:
        shapes.append(svg.line("mark dashed", x1=0, x2=100, y1=y_of(p95), y2=y_of(p95)))
        shapes.append(svg.text(f"dashes: p95 {format_seconds(p95)}", x=100, y=14, css="small", anchor="end"))
    radius = 4.0 if len(steps) <= 40 else 2.0
    for number, seconds in enumerate(steps):
        x = 2.0 + 96.0 * number / max(len(steps) - 1, 1)
        title = f"step {number + 1}: {format_seconds(seconds)}"
        shapes.append(svg.dot("data", x=x, y=y_of(seconds), radius=radius, title=title))
    shapes.append(svg.text("step 1", x=0, y=bottom + 18, css="small muted"))
    shapes.append(svg.text(f"step {len(steps)}", x=100, y=bottom + 18, css="small muted", anchor="end"))
    return svg.svg(shapes, height=bottom + 24, label=f"Time of each of {len(steps)} measured steps")


def memory_bar(
    *,
    allocated: float,
    limit: float,
    reserved: float | None = None,
    device: float | None = None,
    requested: float | None = None,
) -> Markup:
    """Memory of one device in bytes against its limit; `requested` is the allocation that no longer fitted."""
    scale = max(limit, reserved or 0, device or 0, allocated + (requested or 0)) or 1.0
    y, height = 24.0, 26.0

    def share(num_bytes: float) -> float:
        return 100.0 * num_bytes / scale

    shapes = [svg.rect("track", x=0, width=share(limit), y=y, height=height)]
    layers = [("device-wide", device, 0.25), ("peak reserved", reserved, 0.5), ("peak allocated", allocated, 1.0)]
    for name, num_bytes, opacity in layers:
        if num_bytes is not None:
            title = f"{name} {format_bytes(num_bytes)}"
            shapes.append(
                svg.rect("data", x=0, width=share(num_bytes), y=y, height=height, title=title, opacity=opacity)
            )
    if requested is not None:
        title = f"asked for {format_bytes(requested)} more"
        shapes.append(
            svg.rect("fault", x=share(allocated), width=share(requested), y=y, height=height, title=title, opacity=0.55)
        )
    at_limit = share(limit)
    shapes.append(svg.line("limit", x1=at_limit, x2=at_limit, y1=y - 5, y2=y + height + 5))
    shapes.append(svg.text(f"peak allocated {format_bytes(allocated)}", x=0, y=16, css="small"))
    side: svg.Anchor = "end" if at_limit > 40 else "start"
    shapes.append(svg.text(f"limit {format_bytes(limit)}", x=at_limit, y=y + height + 20, css="small", anchor=side))
    if requested is not None:
        shapes.append(
            svg.text(f"asked for {format_bytes(requested)}", x=100, y=16, css="small fault-text", anchor="end")
        )
    return svg.svg(shapes, height=y + height + 24, label="Memory of one device against its limit")


def throughput_bars(strategies: Mapping[str, float], *, ideal: float | None, num_devices: int) -> Markup:
    """Tokens per second of each strategy; `ideal` is `num_devices` times one device."""
    if not strategies:
        return Markup("")
    scale = max(*strategies.values(), ideal or 0.0, 1e-12)
    row, height = 46.0, 16.0
    shapes = []
    for number, (name, throughput) in enumerate(strategies.items()):
        y = number * row
        width = 100.0 * throughput / scale
        share = f", {100 * throughput / ideal:.0f} % of ideal" if ideal else ""
        shapes.append(svg.text(name, x=0, y=y + 14, css="name"))
        shapes.append(
            svg.text(f"{format_count(throughput)} tokens/s{share}", x=100, y=y + 14, css="small", anchor="end")
        )
        shapes.append(svg.rect("track", x=0, width=100, y=y + 21, height=height))
        shapes.append(svg.rect("data", x=0, width=width, y=y + 21, height=height))
    bottom = len(strategies) * row
    if ideal:
        x = 100.0 * ideal / scale
        for y in range(0, len(strategies) * int(row), int(row)):
            shapes.append(svg.line("limit", x1=x, x2=x, y1=y + 18.0, y2=y + 24.0 + height))
        words = f"ideal: {num_devices} x one device, {format_count(ideal)} tokens/s"
        shapes.append(svg.text(words, x=100, y=bottom + 13, css="small muted", anchor="end"))
    return svg.svg(shapes, height=bottom + 20, label="Tokens per second by strategy against the ideal")


def stacked_bar(
    parts: Sequence[tuple[str, float, int]], *, label: str, words: Callable[[float], str] = format_seconds
) -> Markup:
    """Parts (name, seconds, colour number) of one whole, side by side, in the order given. `words` tells a size."""
    whole = sum(seconds for _, seconds, _ in parts)
    if whole <= 0:
        return Markup("")
    shapes, x = [], 0.0
    for name, seconds, colour in parts:
        width = 100.0 * seconds / whole
        title = f"{name}: {words(seconds)}, {width:.1f} %"
        shapes.append(svg.rect(f"series-{colour}", x=x, width=width, y=0, height=28, title=title))
        x += width
    return svg.svg(shapes, height=28, label=label)
