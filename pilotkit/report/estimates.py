"""Estimates as people see them: the terminal table, and the section of the page.

Called by stage `estimate` and by `pilotkit.report.sections`. Shows; computes no figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from pilotkit.records.record import Record
from pilotkit.report import plots
from pilotkit.report.parts import figure_of
from pilotkit.report.values import format_value, label_of, record_href
from pilotkit.report.view import Cell, Section, TableView
from pilotkit.units import format_bytes

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
    for name in ("step_seconds", "tokens_per_second", "mfu"):
        if name in metrics:
            table.add_row(label_of(name), format_value(name, metrics[name]), Text(str(details.get("calibration", ""))))
    return table


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
    rows = [
        [Cell(str(peak["step"])), Cell(format_bytes(peak["peak_bytes"]), "estimated", href), Cell(str(peak["where"]))]
        for peak in peaks
    ]
    section.tables.append(TableView(["step", "peak allocated", "where"], rows))
    return {f"{kind}_bytes" for kind in KINDS}
