"""The section of precision and recomputation: the verdict, fp32 beside the candidate, memory saved for time added.

Called by `pilotkit.report.sections`. Arranges what the record holds; judges nothing of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pilotkit.records.record import Record
from pilotkit.report.losses import precision_losses
from pilotkit.report.parts import cell_of
from pilotkit.report.values import record_href, status_words
from pilotkit.report.view import Cell, Section, TableView, tone_of

TONES = {"accept": "good", "reject": "bad", "undecided": "quiet"}
FIGURES = {
    "evaluation loss, difference": ("loss_deviation", "loss_noise"),
    "first gradient, worst group": ("grad_deviation", "grad_noise"),
}
DTYPE_ROWS = ("parameters", "gradients", "products", "buffers")


def arrange_numerics(section: Section, record: Record, page_dir: Path) -> set[str]:
    """Fill the section from the record; returns the names of the metrics that it shows."""
    precision: Mapping[str, Any] = record.details.get("precision") or {}
    if precision:
        section.lead = f"{precision['name']}: {precision['verdict']}. {' '.join(precision['reasons'])}"
    figure = precision_losses(record, page_dir=page_dir)
    section.figures += [figure] if figure else []
    shown: set[str] = set()
    if precision and "loss_deviation" in record.metrics:
        rows = [
            [Cell(title), *(cell_of(record, name, page_dir=page_dir) for name in names)]
            for title, names in FIGURES.items()
        ]
        shown |= {name for names in FIGURES.values() for name in names}
        title = f"{precision['name']} against fp32, beside chance"
        section.tables.append(TableView(["figure", "off fp32", "fp32 on other rows"], rows, title))
    section.tables += _dtypes(record, page_dir=page_dir)
    modes, held = _modes(record, page_dir=page_dir)
    section.tables += modes
    return shown | held


def _modes(record: Record, *, page_dir: Path) -> tuple[list[TableView], set[str]]:
    rows: list[Mapping[str, Any]] = record.details.get("recomputation") or []
    columns = {
        "peak memory": "peak_allocated_bytes",
        "step": "step_seconds",
        "saved": "saved_bytes",
        "added": "added_seconds",
    }
    cells = [
        [
            Cell(str(row["mode"])),
            Cell(status_words(str(row["status"])), tone=tone_of(str(row["status"]))),
            *(cell_of(record, f"{row['mode']}_{metric}", page_dir=page_dir) for metric in columns.values()),
            Cell(str(row.get("note") or ""), tone="quiet"),
        ]
        for row in rows
    ]
    if not cells:
        return [], set()
    held = {f"{row['mode']}_{metric}" for row in rows for metric in columns.values()}
    title = "Activation checkpointing on this run's shapes"
    return [TableView(["mode", "status", *columns, "note"], cells, title)], held


def _dtypes(record: Record, *, page_dir: Path) -> list[TableView]:
    """Dtypes as seen in the first step, of fp32 and of the candidate."""
    candidate = (record.details.get("candidate") or {}).get("candidate")
    if not candidate:
        return []
    href = record_href(record, page_dir=page_dir)
    table: Mapping[str, Mapping[str, int]] = candidate["dtypes"]
    rows = [[Cell(name), Cell(_counts(table[name]), "measured", href)] for name in DTYPE_ROWS if table[name]]
    rows.append([Cell("output"), Cell(", ".join(candidate["dtypes"]["output"]), "measured", href)])
    return [TableView(["what", "dtype"], rows, "Number formats seen in the first step")]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{dtype} ({count:,})" for dtype, count in counts.items())
