"""Estimates as people see them: the terminal table, and the section of the page.

Called by stage `estimate` and by `pilotkit.report.sections`. Shows; computes no figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich import box
from rich.table import Table
from rich.text import Text

from pilotkit.records.record import Record
from pilotkit.report import plots, svg
from pilotkit.report.parts import figure_of
from pilotkit.report.values import format_value, record_href
from pilotkit.report.view import Cell, Section, TableView
from pilotkit.units import format_bytes, format_seconds

KINDS = ("parameters", "gradients", "optimizer_state", "activations", "gathered", "buckets", "batch", "temporary")


def estimate_table(metrics: Mapping[str, float], details: Mapping[str, Any], *, hardware: str) -> Table:
    """One row a figure: peaks with where they stand and what for, overhead, and the verdict against the device."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for name, justify in (("estimated", "left"), ("value", "right"), ("note", "left")):
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    for peak in details["peaks"]:
        note = f"{peak['where']}: {kinds_words(peak['kinds'])}"
        table.add_row(f"peak allocated, {peak['step']}", format_bytes(peak["peak_bytes"]), Text(note))
    for name, words in (("native", "native segments"), ("expandable", "expandable segments")):
        if f"{name}_reserved_bytes" in metrics:
            table.add_row(f"peak reserved, {words}", format_bytes(metrics[f"{name}_reserved_bytes"]), "replayed")
    for line in details.get("overhead") or ():
        table.add_row(Text(str(line["what"])), format_bytes(line["num_bytes"]), "not traced; estimate.* sets it")
    verdict = Text("fits", style="green") if details["fits"] else Text("does not fit", style="red")
    limit = format_bytes(metrics["memory_limit_bytes"])
    table.add_row(f"in use on {hardware}", format_bytes(metrics["device_used_bytes"]), Text(f"of {limit}: ") + verdict)
    if "step_seconds" in metrics:
        band = f"{format_seconds(metrics['step_low_seconds'])} to {format_seconds(metrics['step_high_seconds'])}"
        parts = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in details["step_parts"].items())
        table.add_row(
            "step", format_seconds(metrics["step_seconds"]), Text(f"{details['calibration']}, {band}: {parts}")
        )
        speed = format_value("tokens_per_second", metrics["tokens_per_second"])
        table.add_row("tokens per second", speed, Text(f"{details['calibration']}, all devices"))
    return table


def grid_table(grid: Mapping[str, Any]) -> Table:
    """Memory in use by micro-batch (down) and sequence length (across); what does not fit is in brackets."""
    points = {(point["micro_batch_size"], point["seq_len"]): point for point in grid["points"]}
    lengths = sorted({seq_len for _, seq_len in points})
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("in use: batch \\ seq")
    for seq_len in lengths:
        table.add_column(str(seq_len), justify="right")
    for micro_batch_size in sorted({batch for batch, _ in points}):
        row = [points[micro_batch_size, seq_len] for seq_len in lengths]
        table.add_row(str(micro_batch_size), *map(_in_use, row))
    table.add_row("largest that fits", *(str(grid["largest_micro_batch"][str(seq_len)]) for seq_len in lengths))
    return table


def _in_use(point: Mapping[str, Any]) -> Text:
    text = format_bytes(point["needed_bytes"])
    return Text(text, style="green") if point["fits"] else Text(f"[{text}]", style="red")


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


def kinds_words(kinds: Mapping[str, float]) -> str:
    """`parameters 1.00 GiB, gradients 1.00 GiB`, largest first."""
    found = sorted(((kind, kinds[kind]) for kind in KINDS if kinds.get(kind)), key=lambda item: -item[1])
    return ", ".join(f"{kind.replace('_', ' ')} {format_bytes(num_bytes)}" for kind, num_bytes in found)


def arrange_estimate(section: Section, record: Record, page_dir: Path) -> set[str]:
    """Memory against the device, what it is made of at the peak, and where each peak stands."""
    metrics, details = record.metrics, record.details
    if "device_used_bytes" not in metrics:
        return set()
    href = record_href(record, page_dir=page_dir)
    section.lead = "Calculated, not run" + (f"; {details['calibration']}." if details.get("calibration") else ".")
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
    return {f"{kind}_bytes" for kind in KINDS}
