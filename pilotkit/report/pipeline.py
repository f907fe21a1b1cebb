"""The section of the budget: the ledger as a waterfall and as a table, the interval, the supply, validation quality.

Called by `pilotkit.report.sections`. Arranges what the record holds; adds up no time of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pilotkit.records.record import Record
from pilotkit.report import plots, svg
from pilotkit.report.values import record_href
from pilotkit.report.view import Cell, Figure, Section, TableView
from pilotkit.units import format_count, format_seconds

_ROW_PIXELS, _LEFT_PERCENT, _RIGHT_PERCENT = 26.0, 30.0, 82.0


def arrange_budget(section: Section, record: Record, page_dir: Path) -> set[str]:
    """Fill the section; returns the names of the metrics that it shows."""
    ledger: list[Mapping[str, Any]] = record.details.get("ledger") or []
    href = record_href(record, page_dir=page_dir)
    added = [line for line in ledger if line["seconds"] and not line.get("included_in")]
    # The steps keep the colour of data everywhere else on the page; the parts around them take the others in turn.
    names = ["steps", *(str(line["part"]) for line in added if line["part"] != "steps")]
    colours = {name: number % plots.NUM_COLOURS for number, name in enumerate(names)}
    parts = [(str(line["part"]), float(line["seconds"]), colours[str(line["part"])]) for line in added]
    if parts:
        section.figures.append(Figure("The whole run, part by part", waterfall(parts), "projected", href))
        rest = [part for part in parts if part[0] != "steps"]
        if len(rest) > 1:
            section.figures.append(Figure("Everything but the steps", waterfall(rest), "projected", href))
    section.tables.append(_ledger_table(ledger, colours=colours, href=href))
    section.tables.append(_quality_table(record.details.get("quality") or [], href=href))
    for name in ("interval", "supply"):
        sentence = (record.details.get(name) or {}).get("sentence")
        if sentence:
            section.notes.append(f"{sentence[0].upper()}{sentence[1:]}.")
    return set()


def waterfall(parts: Sequence[tuple[str, float, int]]) -> Markup:
    """Parts (name, seconds, colour number) one below the other, each beginning where the one before ended."""
    whole = sum(seconds for _, seconds, _ in parts)
    if whole <= 0:
        return Markup("")
    shapes, done = [], 0.0
    width = _RIGHT_PERCENT - _LEFT_PERCENT
    for number, (name, seconds, colour) in enumerate(parts):
        y = number * _ROW_PIXELS
        x = _LEFT_PERCENT + width * done / whole
        title = f"{name}: {format_seconds(seconds)}, {100 * seconds / whole:.1f} %"
        shapes.append(svg.text(name, x=0, y=y + 16, css="small"))
        # Too short to be seen is still there: a hair's breadth at least.
        shown = max(width * seconds / whole, 0.4)
        shapes.append(svg.rect(f"series-{colour}", x=x, width=shown, y=y + 3, height=18, title=title))
        shapes.append(svg.text(format_seconds(seconds), x=100, y=y + 16, css="small", anchor="end"))
        done += seconds
    named = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds, _ in parts)
    return svg.svg(shapes, height=len(parts) * _ROW_PIXELS, label=f"Parts of the run in their order: {named}")


def _ledger_table(ledger: Sequence[Mapping[str, Any]], *, colours: Mapping[str, int], href: str | None) -> TableView:
    rows = []
    for line in ledger:
        part = str(line["part"])
        name = part if not line.get("included_in") else f"{part} (within {line['included_in']})"
        rows.append(
            [
                Cell(name, swatch=colours.get(part)),
                Cell(_seconds(line["seconds"], "not known"), str(line["origin"]), href),
                Cell(str(line.get("samples") or "")),
                Cell(_seconds(line.get("each_seconds"))),
                Cell(_seconds(line.get("p95_seconds"))),
                Cell(str(line["how"]), tone="quiet"),
            ]
        )
    return TableView(["part", "time", "n", "mean", "p95", "how"], rows)


def _quality_table(items: Sequence[Mapping[str, Any]], *, href: str | None) -> TableView:
    rows = [
        [
            Cell(str(item["stage"])),
            Cell(f"{item['eval_loss']:.4f}", "measured", href),
            Cell("" if item["tokens"] is None else format_count(item["tokens"])),
            Cell("not known" if item["gpu_hours"] is None else f"{item['gpu_hours']:.3g}"),
            Cell("not known" if item["loss_per_gpu_hour"] is None else f"{item['loss_per_gpu_hour']:.3g}"),
        ]
        for item in items
    ]
    columns = ["evaluation in", "loss", "tokens", "GPU-hours", "loss gained a GPU-hour"]
    return TableView(columns, rows, title="Validation quality")


def _seconds(value: float | None, absent: str = "") -> str:
    return absent if value is None else format_seconds(value)
