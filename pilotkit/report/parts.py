"""Pieces that several sections of the page share: a card, a metric's cell, a plot with its origin.

Called by `pilotkit.report.sections` and `pilotkit.report.strategies`. Arranges; computes no figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pilotkit.records.record import Record
from pilotkit.report.values import record_href, value_of
from pilotkit.report.view import Cell, Figure, TableView, tone_of


def card_of(items: Sequence[Mapping[str, Any]], *, name: str) -> TableView:
    """The card of `prove` or the comparison of `restore`; `name` is the key that names a row."""
    rows = [
        [
            Cell(str(item[name])),
            Cell(str(item["verdict"]), tone=tone_of(str(item["verdict"]))),
            Cell(str(item.get("note") or ""), tone="quiet"),
        ]
        for item in items
    ]
    return without_empty(TableView([name, "verdict", "note"], rows))


def without_empty(view: TableView) -> TableView:
    """The table without a last column in which no row says anything."""
    if any(row[-1].text for row in view.rows):
        return view
    return TableView(view.columns[:-1], [row[:-1] for row in view.rows], view.title)


def cell_of(record: Record, metric: str, *, page_dir: Path) -> Cell:
    """One metric with its origin and its record, or `none` when the record lacks it."""
    if metric not in record.metrics:
        return Cell("none", tone="quiet")
    value = value_of(record, metric, page_dir=page_dir)
    return Cell(value.text, value.origin, value.href)


def figure_of(
    title: str,
    plot: Markup,
    *,
    record: Record,
    metric: str,
    page_dir: Path,
    legend: Sequence[tuple[int, str, str]] = (),
) -> Figure:
    """A plot whose numbers share the origin of `metric`."""
    origin = record.origins.get(metric, "origin not recorded")
    return Figure(title, plot, origin, record_href(record, page_dir=page_dir), legend)
