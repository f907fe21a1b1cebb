"""Estimates on the page: memory against the device, over the step and by kind, the grid, the answers.

Called by `pilotkit.report.sections`. Shows; computes no figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pilotkit.records.record import Record
from pilotkit.report import plots, svg
from pilotkit.report.estimate_tables import KINDS, answer_rows, comparison_rows, compiled_words
from pilotkit.report.parts import figure_of
from pilotkit.report.values import record_href
from pilotkit.report.view import Cell, Section, TableView
from pilotkit.units import format_bytes


def memory_map(grid: Mapping[str, Any]) -> Markup:
    """The grid as a map: micro-batch down, sequence length across; what does not fit in the colour of faults."""
    points: list[Mapping[str, Any]] = grid["points"]
    batches = sorted({point["micro_batch_size"] for point in points})
    lengths = sorted({point["seq_len"] for point in points})
    highest = max(float(point["needed_bytes"]) for point in points)
    margin, top, height = 16.0, 24.0, 36.0
    width = (100.0 - margin) / len(lengths)
    shapes = [svg.text("batch \\ seq", x=0, y=15, css="small muted")]
    for column, seq_len in enumerate(lengths):
        shapes.append(svg.text(str(seq_len), x=margin + (column + 0.5) * width, y=15, css="small", anchor="middle"))
    for row, batch in enumerate(batches):
        shapes.append(svg.text(str(batch), x=0, y=top + row * height + 22, css="small"))
    for point in points:
        x = margin + lengths.index(point["seq_len"]) * width
        y = top + batches.index(point["micro_batch_size"]) * height
        words = format_bytes(point["needed_bytes"])
        css, text_css = ("data", "tiny") if point["fits"] else ("fault", "tiny fault-text")
        shade = 0.10 + 0.45 * point["needed_bytes"] / highest if point["fits"] else 0.14
        title = f"{words}: {'fits' if point['fits'] else 'does not fit'}"
        shapes.append(
            svg.rect(css, x=x + 0.3, width=width - 0.6, y=y + 2, height=height - 4, title=title, opacity=shade)
        )
        shapes.append(svg.text(words, x=x + width / 2, y=y + 22, css=text_css, anchor="middle"))
    return svg.svg(shapes, height=top + len(batches) * height, label="Memory in use by micro-batch and sequence length")


def memory_over_the_step(profile: Sequence[Mapping[str, Any]], *, limit: float) -> Markup:
    """Live bytes from the start of a steady step to its end, as columns, with the parts of the step named below and the
    limit of the device as a line where it is near."""
    highest = max(float(point["live_bytes"]) for point in profile)
    top, bottom = 24.0, 144.0
    near = limit <= 2 * highest
    scale = max(highest, limit) if near else highest
    width = 100.0 / len(profile)
    shapes = []
    for number, point in enumerate(profile):
        height = float(point["live_bytes"]) / scale * (bottom - top)
        title = f"{point['moment']}: {format_bytes(point['live_bytes'])}"
        css = "fault" if point["live_bytes"] > limit else "data"
        shapes.append(
            svg.rect(css, x=number * width, width=width, y=bottom - height, height=height, title=title, opacity=0.7)
        )
    start = 0
    for number in range(1, len(profile) + 1):
        if number == len(profile) or profile[number]["moment"] != profile[start]["moment"]:
            if number - start >= len(profile) / 12:  # narrower ones have no room for their name
                name = str(profile[start]["moment"])
                shapes.append(svg.text(name, x=start * width, y=bottom + 18, css="small muted"))
            shapes.append(svg.line("axis", x1=start * width, x2=start * width, y1=bottom, y2=bottom + 6))
            start = number
    shapes.append(svg.text(f"highest {format_bytes(highest)}", x=0, y=14, css="small"))
    if near:
        y = bottom - limit / scale * (bottom - top)
        shapes.append(svg.line("limit", x1=0, x2=100, y1=y, y2=y))
        shapes.append(svg.text(f"device {format_bytes(limit)}", x=100, y=14, css="small", anchor="end"))
    return svg.svg(shapes, height=bottom + 26, label="Memory of one device over a steady step")


def arrange_estimate(section: Section, record: Record, page_dir: Path) -> set[str]:
    """Memory against the device, what it is made of at the peak, and where each peak stands."""
    metrics, details = record.metrics, record.details
    if "device_used_bytes" not in metrics:
        return set()
    href = record_href(record, page_dir=page_dir)
    traced = "Counted by a rule of thumb, not traced and not run" if details.get("method") else "Calculated, not run"
    section.lead = traced + (f"; {details['calibration']}." if details.get("calibration") else ".")
    if details.get("compiled"):
        compiled = details["compiled"]
        section.lead += f" torch.compile is {compiled['how']}: {compiled_words(compiled)}."
    bar = plots.memory_bar(
        allocated=metrics["peak_allocated_bytes"],
        limit=metrics["memory_limit_bytes"],
        reserved=metrics.get("peak_reserved_bytes"),
        device=metrics["device_used_bytes"],
    )
    section.figures.append(
        figure_of("Memory of one device", bar, record=record, metric="peak_allocated_bytes", page_dir=page_dir)
    )
    peaks: list[Mapping[str, Any]] = details.get("peaks") or []
    if peaks:
        highest = max(peaks, key=lambda peak: float(peak["peak_bytes"]))
        parts = [
            (kind.replace("_", " "), float(highest["kinds"][kind]), number)
            for number, kind in enumerate(KINDS)
            if highest["kinds"].get(kind)
        ]
        legend = [(colour, name, format_bytes(num_bytes)) for name, num_bytes, colour in parts]
        plot = plots.stacked_bar(parts, label="What the peak is made of")
        section.figures.append(
            figure_of(
                f"What the peak is made of ({highest['step']})",
                plot,
                record=record,
                metric="peak_allocated_bytes",
                page_dir=page_dir,
                legend=legend,
            )
        )
    if details.get("memory_profile"):
        plot = memory_over_the_step(details["memory_profile"], limit=metrics["memory_limit_bytes"])
        section.figures.append(
            figure_of(
                "Tensors alive over a steady step",
                plot,
                record=record,
                metric="steady_step_peak_bytes",
                page_dir=page_dir,
            )
        )
    if details.get("grid"):
        plot = memory_map(details["grid"])
        section.figures.append(
            figure_of(
                "Memory in use by micro-batch and seq-len",
                plot,
                record=record,
                metric="peak_allocated_bytes",
                page_dir=page_dir,
            )
        )
    rows = [
        [Cell(str(peak["step"])), Cell(format_bytes(peak["peak_bytes"]), "estimated", href), Cell(str(peak["where"]))]
        for peak in peaks
    ]
    section.tables.append(TableView(["step", "peak allocated", "where"], rows))
    for title, columns, lines in answer_rows(details):
        section.tables.append(TableView(columns, [[Cell(text) for text in line] for line in lines], title))
    if details.get("compared"):
        columns, lines = comparison_rows(details["compared"])
        title = "Estimate beside measurement"
        section.tables.append(TableView(columns, [[Cell(text) for text in line] for line in lines], title))
    return {f"{kind}_bytes" for kind in KINDS}
