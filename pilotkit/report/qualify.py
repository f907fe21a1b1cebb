"""The chapter of `qualify`: what failed of the set, what was not compared, and what the set is made of.

Called by `pilotkit.report.sections`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pilotkit.records.record import Record
from pilotkit.report.view import Cell, Section, TableView, tone_of


def arrange_qualify(section: Section, record: Record, page_dir: Path) -> set[str]:
    """What failed first, then what was not compared; what passed is counted, not listed."""
    card: list[Mapping[str, Any]] = record.details.get("card") or []
    if record.details.get("verdict"):
        digest = str(record.details.get("set_digest", ""))[:12]
        section.lead = f"This set ({digest}) is {record.details['verdict']}."
    order = {"FAIL": 0, "NOT RUN": 1, "PASS": 2}
    rows = [
        [
            Cell(str(item["check"])),
            Cell(str(item["subject"])),
            Cell(str(item["verdict"]), tone=tone_of(str(item["verdict"]))),
            Cell(str(item["note"]), tone="quiet"),
        ]
        for item in sorted(card, key=lambda item: order.get(str(item["verdict"]), 3))
        if item["verdict"] != "PASS" or item["check"] != "operator"
    ]
    if rows:
        section.tables.append(TableView(["check", "of", "verdict", "note"], rows))
    members: Mapping[str, Any] = record.details.get("set") or {}
    shown = [(name, value) for name, value in members.items() if isinstance(value, str)]
    if shown:
        section.tables.append(TableView(["member of the set", "what"], [[Cell(n), Cell(v)] for n, v in shown]))
    return set()
