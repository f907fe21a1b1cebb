"""From one record to one section of the page: which plots, tables and values each chapter shows.

Called by `pilotkit.report.page`. Reads records and arranges what is in them; every number keeps its origin and the
way to its record. What a record lacks is left out or called not run, never filled in.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from pilotkit.chapters import Chapter
from pilotkit.records.record import Record
from pilotkit.report import plots
from pilotkit.report.decision import arrange_plan
from pilotkit.report.estimates import arrange_estimate
from pilotkit.report.losses import restored_losses
from pilotkit.report.memory import arrange_memory
from pilotkit.report.numerics import arrange_numerics
from pilotkit.report.parts import card_of, figure_of
from pilotkit.report.pipeline import arrange_budget
from pilotkit.report.qualify import arrange_qualify
from pilotkit.report.strategies import arrange_pilot
from pilotkit.report.values import record_href, status_words, value_of
from pilotkit.report.view import Figure, Section, tone_of
from pilotkit.units import format_seconds

NOT_RUN = "not run"


def section_of(
    chapter: Chapter, *, record: Record | None, command: str, page_dir: Path, elsewhere: Record | None = None
) -> Section:
    """The section of one chapter; `command` would run its stage, and is shown when there is no record.

    `elsewhere` is what the study holds of this stage with other options: it is named, lest "not run" surprise.
    """
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
            notes=[ran_elsewhere(elsewhere)] if elsewhere is not None else [],
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


def ran_elsewhere(record: Record) -> str:
    """Where the stage did run: a record of the same study under options that are not this run's."""
    typed = shlex.join(word for word in record.overrides if not word.startswith("stage="))
    return f"{record.stage} ran with other options: {record.run_id} ({typed or 'none given'})"


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
    return arrange_memory(section, record, page_dir)


def _step_parts(record: Record, *, page_dir: Path) -> list[Figure]:
    """The step as one bar: means, which add up to the mean step."""
    names = ("data_wait_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds", "other_seconds")
    words = ("data wait", "forward", "backward", "optimizer", "other")
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
    figure = restored_losses(record, page_dir=page_dir)
    section.figures += [figure] if figure else []
    section.tables.append(card_of(record.details.get("comparison") or [], name="component"))
    return set()


_ARRANGERS: dict[str, Callable[[Section, Record, Path], set[str]]] = {
    "lock": _lock,
    "estimate": arrange_estimate,
    "prove": _prove,
    "measure": _measure,
    "numerics": arrange_numerics,
    "pilot": arrange_pilot,
    "restore": _restore,
    "qualify": arrange_qualify,
    "budget": arrange_budget,
    "plan": arrange_plan,
}
