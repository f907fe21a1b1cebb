"""From one record to one section of the page: which plots, tables and values each chapter shows.

Called by `pilotkit.report.page`. Reads records and arranges what is in them; every number keeps its origin and the
way to its record. What a record lacks is left out or called not run, never filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pilotkit.chapters import Chapter
from pilotkit.records.record import Record
from pilotkit.report import plots
from pilotkit.report.estimates import arrange_estimate
from pilotkit.report.parts import card_of, figure_of
from pilotkit.report.strategies import arrange_pilot
from pilotkit.report.values import format_value, record_href, status_words, value_of
from pilotkit.report.view import Cell, Figure, Section, TableView, tone_of
from pilotkit.units import format_seconds

NOT_RUN = "not run"


def section_of(chapter: Chapter, *, record: Record | None, command: str, page_dir: Path) -> Section:
    """The section of one chapter; `command` would run its stage, and is shown when there is no record."""
    if record is None:
        absence = "" if chapter.built else "not built in this version"
        return Section(
            chapter.chapter,
            chapter.stage,
            chapter.question,
            status=NOT_RUN,
            tone="quiet",
            command=command if chapter.built else "",
            absence=absence,
        )
    section = Section(
        chapter.chapter,
        chapter.stage,
        chapter.question,
        status=status_words(record.status),
        tone=tone_of(record.status),
        run_id=record.run_id,
        href=record_href(record, page_dir=page_dir),
        wall=format_seconds(record.wall_seconds),
        failure=record.problem,
        notes=[str(text) for text in record.details.get("warnings") or ()],
    )
    arrange = _ARRANGERS.get(chapter.stage)
    shown = arrange(section, record, page_dir) if arrange is not None else set()
    section.values = [value_of(record, name, page_dir=page_dir) for name in record.metrics if name not in shown]
    return section


def _lock(section: Section, record: Record, page_dir: Path) -> set[str]:
    section.notes += [str(text) for text in record.details.get("problems") or ()]
    return set()


def _prove(section: Section, record: Record, page_dir: Path) -> set[str]:
    section.tables.append(card_of(record.details.get("card") or [], name="item"))
    return set()


def _measure(section: Section, record: Record, page_dir: Path) -> set[str]:
    metrics = record.metrics
    if "memory_limit_bytes" in metrics and "peak_allocated_bytes" in metrics:
        plot = plots.memory_bar(
            allocated=metrics["peak_allocated_bytes"],
            limit=metrics["memory_limit_bytes"],
            reserved=metrics.get("peak_reserved_bytes"),
            device=metrics.get("device_used_bytes"),
            requested=metrics.get("requested_bytes"),
        )
        section.figures.append(
            figure_of("Memory of one device", plot, record=record, metric="peak_allocated_bytes", page_dir=page_dir)
        )
    steps = [float(seconds) for seconds in record.details.get("steps") or ()]
    if steps:
        plot = plots.step_strip(steps, median=metrics.get("step_seconds"), p95=metrics.get("step_p95_seconds"))
        section.figures.append(
            figure_of("Time of each measured step", plot, record=record, metric="step_seconds", page_dir=page_dir)
        )
    section.figures += _step_parts(record, page_dir=page_dir)
    return set()


def _step_parts(record: Record, *, page_dir: Path) -> list[Figure]:
    """The step as one bar. Parts are medians of their own and need not add up to the median step."""
    names = ("data_wait_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds")
    words = ("data wait", "forward", "backward", "optimizer")
    found = [
        (word, record.metrics[name], number)
        for number, (name, word) in enumerate(zip(names, words, strict=True), 1)
        if name in record.metrics
    ]
    if len(found) < 2:
        return []
    plot = plots.stacked_bar(found, label="Parts of a step")
    legend = [(colour, word, format_seconds(seconds)) for word, seconds, colour in found]
    return [
        figure_of("Where a step goes", plot, record=record, metric="step_seconds", page_dir=page_dir, legend=legend)
    ]


def _restore(section: Section, record: Record, page_dir: Path) -> set[str]:
    section.tables.append(card_of(record.details.get("comparison") or [], name="component"))
    return set()


def _budget(section: Section, record: Record, page_dir: Path) -> set[str]:
    ledger: list[Mapping[str, Any]] = record.details.get("ledger") or []
    href = record_href(record, page_dir=page_dir)
    # The steps keep the colour of data everywhere else on the page; the parts around them take the others in turn.
    names = ["steps", *(str(line["part"]) for line in _added(ledger) if line["part"] != "steps")]
    colours = {name: number % plots.NUM_COLOURS for number, name in enumerate(names)}
    parts = [(str(line["part"]), float(line["seconds"]), colours[str(line["part"])]) for line in _added(ledger)]
    origin = "projected"
    if parts:
        section.figures.append(Figure("The whole run", plots.stacked_bar(parts, label="The whole run"), origin, href))
        rest = [part for part in parts if part[0] != "steps"]
        if sum(seconds for _, seconds, _ in rest) > 0:
            plot = plots.stacked_bar(rest, label="Everything but the steps")
            section.figures.append(Figure("Everything but the steps, enlarged", plot, origin, href))
    rows = []
    for line in ledger:
        seconds = line["seconds"]
        part = str(line["part"])
        time = Cell("not known" if seconds is None else format_seconds(seconds), str(line["origin"]), href)
        name = part if not line.get("included_in") else f"{part} (within {line['included_in']})"
        rows.append([Cell(name, swatch=colours.get(part)), time, Cell(str(line["how"]), tone="quiet")])
    section.tables.append(TableView(["part", "time", "how"], rows))
    return set()


def _added(ledger: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Lines with a known time that is not within another line's."""
    return [line for line in ledger if line["seconds"] is not None and not line.get("included_in")]


def _plan(section: Section, record: Record, page_dir: Path) -> set[str]:
    reservations: list[Mapping[str, Any]] = record.details.get("reservations") or []
    if not reservations:
        return set()
    href = record_href(record, page_dir=page_dir)
    section.figures.append(
        Figure("The run in each reservation", plots.reservation_bars(reservations), "projected", href)
    )
    currency = str(record.details.get("currency") or "")
    rows = []
    for item in reservations:
        cost = item.get("cost")
        rows.append(
            [
                Cell(str(item["name"])),
                Cell("fits" if item["fits"] else "too short", tone="good" if item["fits"] else "bad"),
                Cell(format_value("run_hours", item["run_hours"]), "projected", href),
                Cell(format_value("hours_available", item["hours_available"]), "given", href),
                Cell(format_value("margin_hours", item["margin_hours"]), "projected", href),
                Cell(
                    NOT_RUN if cost is None else f"{cost:,.2f} {currency}".strip(),
                    "" if cost is None else "projected",
                    href,
                ),
            ]
        )
    section.tables.append(TableView(["reservation", "verdict", "run", "available", "to spare", "cost"], rows))
    return set()


_ARRANGERS: dict[str, Callable[[Section, Record, Path], set[str]]] = {
    "lock": _lock,
    "estimate": arrange_estimate,
    "prove": _prove,
    "measure": _measure,
    "pilot": arrange_pilot,
    "restore": _restore,
    "budget": _budget,
    "plan": _plan,
}
