"""The page of a sweep: what fits and how fast it is, the best point of each hardware, and what failed and why.

Called by the stage `sweep_collect`, which writes the text it returns. Like the report it needs no network, is
whole without its script, and escapes every text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pilotkit.records.frontiers import Frontier
from pilotkit.records.record import DONE, Record
from pilotkit.report.furniture import page_environment, page_furniture
from pilotkit.report.heatmap import MEMORY, SPEED, sweep_map
from pilotkit.report.tables import lookup, typed
from pilotkit.report.values import format_value, record_href, status_words
from pilotkit.report.view import tone_of


def best_points(records: Sequence[Record], *, varying: Sequence[str]) -> list[tuple[str, Record, str]]:
    """(hardware, its fastest record, what was chosen in it), fastest first; only of points that were measured."""
    best: dict[str, Record] = {}
    for record in records:
        speed = record.metrics.get("tokens_per_second")
        name = str(lookup(record.config, "hardware.name") or "unknown hardware")
        if record.status == "ok" and speed is not None and speed > _speed(best.get(name)):
            best[name] = record
    rows = sorted(best.items(), key=lambda item: -_speed(item[1]))
    return [(name, record, choice(record, varying=varying)) for name, record in rows]


def choice(record: Record, *, varying: Sequence[str]) -> str:
    """What sets this point apart, as it was typed."""
    words = [f"{key}={typed(record.overrides, key)}" for key in varying]
    return " ".join(words) or "the only point"


def render_sweep_page(
    records: Sequence[Record],
    *,
    varying: Sequence[str],
    title: str,
    counts: str,
    page_dir: Path,
    frontier: Frontier | None = None,
) -> str:
    """The whole page as text. `records` are the points in order, with their truths; `counts` is the headline.

    `frontier` is what a search over them has found.
    """
    measured = [record for record in records if record.config]
    names = dict.fromkeys(str(lookup(record.config, "hardware.name")) for record in measured)
    maps: list[tuple[str, str, Markup]] = []
    for name in names:
        ours = [record for record in measured if lookup(record.config, "hardware.name") == name]
        maps += [(name, "tokens per second", sweep_map(ours, metrics=SPEED))]
        maps += [(name, "peak memory", sweep_map(ours, metrics=MEMORY))]
    return (
        page_environment()
        .get_template("sweep.html.j2")
        .render(
            title=title,
            **page_furniture(),
            counts=counts,
            frontier=frontier,
            has_frontier=any(record.status == "does_not_fit" for record in records),
            maps=[item for item in maps if item[2]],
            best=[
                (
                    name,
                    text,
                    _metric(record, "tokens_per_second"),
                    _memory(record),
                    record_href(record, page_dir=page_dir),
                )
                for name, record, text in best_points(records, varying=varying)
            ],
            failed=[
                (choice(record, varying=varying), status_words(record.status), record.problem.summary)
                for record in records
                if record.problem is not None and record.status not in DONE
            ],
            columns=[*varying, "status", "peak memory", "step", "tokens/s"],
            rows=[_row(record, varying=varying, page_dir=page_dir) for record in records],
        )
    )


def _row(record: Record, *, varying: Sequence[str], page_dir: Path) -> dict[str, Any]:
    values = [str(typed(record.overrides, key)) for key in varying]
    numbers = [_memory(record), _metric(record, "step_seconds"), _metric(record, "tokens_per_second")]
    return {
        "cells": [*values, status_words(record.status), *numbers],
        "tone": tone_of(record.status),
        "status_at": len(values),
        "href": record_href(record, page_dir=page_dir) if record.folder else None,
    }


def _metric(record: Record, name: str) -> str:
    # The column's head says "/s" already.
    return format_value(name, record.metrics[name]).removesuffix("/s") if name in record.metrics else "none"


def _memory(record: Record) -> str:
    return next((format_value(name, record.metrics[name]) for name in MEMORY if name in record.metrics), "none")


def _speed(record: Record | None) -> float:
    return -1.0 if record is None else record.metrics["tokens_per_second"]
