"""What a section of the page is made of: values, tables, figures, a failure. Plain data for the template.

Filled by `pilotkit.report.sections`, shown by `templates/report.html.j2`. Holds no markup but finished plots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from pilotkit.records.record import Failure
from pilotkit.report.values import Value


@dataclass(frozen=True)
class Cell:
    """One cell of a table. With an `origin` it is a number, and that word is the link to `href`.

    `tone` is good, bad or quiet; `swatch` the number of a series colour.
    """

    text: str
    origin: str = ""
    href: str | None = None
    tone: str = ""
    swatch: int | None = None


@dataclass(frozen=True)
class TableView:
    """Named columns and rows of cells."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""


@dataclass(frozen=True)
class Figure:
    """A finished plot with its title, where its numbers come from, and a legend of (series colour, name, text)."""

    title: str
    plot: Markup
    origin: str
    href: str | None = None
    legend: Sequence[tuple[int, str, str]] = ()


@dataclass
class Section:
    """One chapter as the page shows it. Without a `run_id` nothing was run, and `command` says how to change that."""

    chapter: str
    stage: str
    question: str
    status: str
    tone: str
    run_id: str = ""
    href: str | None = None
    wall: str = ""
    command: str = ""
    absence: str = ""
    failure: Failure | None = None
    notes: list[str] = field(default_factory=list)
    lead: str = ""
    figures: list[Figure] = field(default_factory=list)
    tables: list[TableView] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)


def tone_of(status: str) -> str:
    """How a status or a verdict is coloured: good, bad or quiet."""
    if status in ("ok", "PASS", "GO"):
        return "good"
    return "bad" if status in ("failed", "mismatch", "does_not_fit", "FAIL", "NO-GO") else "quiet"
