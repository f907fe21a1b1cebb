"""The section of the pilot: strategies beside each other, and beside one device.

Called by `pilotkit.report.sections`. Arranges what the record holds; recommends nothing of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pilotkit.records.record import Record
from pilotkit.report import plots
from pilotkit.report.parts import cell_of, figure_of, without_empty
from pilotkit.report.values import label_of, status_words
from pilotkit.report.view import Cell, Section, TableView, tone_of

STRATEGIES = ("ddp", "fsdp", "hsdp")


def arrange_pilot(section: Section, record: Record, page_dir: Path) -> set[str]:
    """Fill the section from the pilot's record; returns the names of the metrics that it shows."""
    metrics = record.metrics
    found: Mapping[str, Mapping[str, Any]] = record.details.get("strategies") or {}
    recommendation = record.details.get("recommendation") or {}
    if recommendation.get("strategy"):
        section.lead = f"Recommended: {recommendation['strategy']}. {recommendation.get('reason') or ''}".strip()
    speeds = {
        name: metrics[f"{name}_tokens_per_second"] for name in STRATEGIES if f"{name}_tokens_per_second" in metrics
    }
    if speeds:
        devices = int(metrics.get("world_size", 0))
        single = metrics.get("single_tokens_per_second")
        ideal = single * devices if single is not None and devices else None
        plot = plots.throughput_bars(speeds, ideal=ideal, num_devices=devices)
        source = f"{next(iter(speeds))}_tokens_per_second"
        section.figures.append(
            figure_of("Tokens per second by strategy", plot, record=record, metric=source, page_dir=page_dir)
        )
    every_column = {
        "tokens/s": "tokens_per_second",
        "step": "step_seconds",
        "spread": "step_spread",
        "peak memory": "peak_allocated_bytes",
        "scaling": "scaling_efficiency",
        "exposed communication": "exposed_comm_share",
        "start": "start_seconds",
    }
    columns = {
        title: metric
        for title, metric in every_column.items()
        if any(f"{name}_{metric}" in metrics for name in {*found, *speeds})
    }
    rows = []
    for name in [*STRATEGIES, *(name for name in found if name not in STRATEGIES)]:
        if name not in found and name not in speeds:
            continue
        status = str(found.get(name, {}).get("status", "ok"))
        cells = [cell_of(record, f"{name}_{metric}", page_dir=page_dir) for metric in columns.values()]
        note = Cell(str(found.get(name, {}).get("note") or ""), tone="quiet")
        rows.append([Cell(name), Cell(status_words(status), tone=tone_of(status)), *cells, note])
    if rows:
        section.tables.append(without_empty(TableView(["strategy", "status", *columns, "note"], rows)))
    shown = {f"{name}_{metric}" for name in {*found, *speeds} for metric in columns.values()}
    rest, held = _by_strategy(record, shown=shown, page_dir=page_dir)
    if rest.rows:
        section.tables.append(rest)
    return shown | held


def _by_strategy(record: Record, *, shown: set[str], page_dir: Path) -> tuple[TableView, set[str]]:
    """What else each strategy left, one row a figure and one column a strategy; and the names of those figures."""
    held = {
        f"{name}_{metric}": (name, metric)
        for name in ("single", *STRATEGIES)
        for metric in (key.removeprefix(f"{name}_") for key in record.metrics if key.startswith(f"{name}_"))
        if f"{name}_{metric}" not in shown
    }
    names = [name for name in ("single", *STRATEGIES) if any(owner == name for owner, _ in held.values())]
    rows = [
        [Cell(label_of(metric)), *(cell_of(record, f"{name}_{metric}", page_dir=page_dir) for name in names)]
        for metric in dict.fromkeys(metric for _, metric in held.values())
    ]
    return TableView(["figure", *names], rows, title="Further figures of each strategy"), set(held)
