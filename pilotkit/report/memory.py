"""Where the memory of a step goes: its peak by kind and by module, and the peaks of the other phases beside it.

Called by `pilotkit.report.sections`. Arranges what the record of `measure` holds; computes no figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pilotkit.records.record import Record
from pilotkit.report import plots
from pilotkit.report.parts import cell_of, figure_of
from pilotkit.report.values import record_href
from pilotkit.report.view import Cell, Section, TableView
from pilotkit.units import format_bytes

NUM_MODULES = 8
PHASES = {
    "first step": "first_step_peak_bytes",
    "steps": "peak_allocated_bytes",
    "evaluation": "evaluation_peak_bytes",
    "checkpoint save": "checkpoint_save_peak_bytes",
}


def arrange_memory(section: Section, record: Record, page_dir: Path) -> set[str]:
    """Add the bar of kinds and the tables; returns the names of the metrics that they show."""
    memory: Mapping[str, Any] = record.details.get("memory") or {}
    if not memory:
        return set()
    kinds: dict[str, float] = dict(memory["breakdown"]["kinds"])
    if record.metrics.get("peak_unseen_bytes", 0.0) > 0:
        kinds["unseen"] = record.metrics["peak_unseen_bytes"]  # what no operator returned: all else of compiled code
    parts = [(kind.replace("_", " "), float(size), number) for number, (kind, size) in enumerate(kinds.items()) if size]
    legend = [(colour, kind, format_bytes(size)) for kind, size, colour in parts]
    section.figures.append(
        figure_of(
            "What the peak of a step consists of",
            plots.stacked_bar(parts, label="Peak memory by kind", words=format_bytes),
            record=record,
            metric="peak_parameters_bytes",
            page_dir=page_dir,
            legend=legend,
        )
    )
    phases = {phase: metric for phase, metric in PHASES.items() if metric in record.metrics}
    rows = [
        [
            Cell(phase),
            cell_of(record, metric, page_dir=page_dir),
            Cell("decides" if phase == memory["deciding_phase"] else "", tone="quiet"),
        ]
        for phase, metric in phases.items()
    ]
    section.tables.append(TableView(["phase", "peak memory", ""], rows, "Peak of each phase"))
    section.tables.append(_modules(record, memory["breakdown"]["modules"], page_dir=page_dir))
    return {f"peak_{kind}_bytes" for kind in kinds} | {metric for phase, metric in phases.items() if phase != "steps"}


def _modules(record: Record, modules: Mapping[str, Mapping[str, int]], *, page_dir: Path) -> TableView:
    """The modules that hold most at the peak, largest first."""
    href = record_href(record, page_dir=page_dir)
    largest = sorted(modules.items(), key=lambda item: -sum(item[1].values()))
    rows = [
        [
            Cell(name),
            Cell(format_bytes(sum(kinds.values())), "measured", href),
            Cell(
                ", ".join(f"{kind.replace('_', ' ')} {format_bytes(size)}" for kind, size in kinds.items()),
                tone="quiet",
            ),
        ]
        for name, kinds in largest[:NUM_MODULES]
    ]
    left = len(largest) - len(rows)
    title = "Peak by module" + (f", the largest {len(rows)} of {len(largest)}" if left else "")
    return TableView(["module", "bytes at the peak", "of it"], rows, title)
