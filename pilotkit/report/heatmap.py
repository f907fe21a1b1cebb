"""The sweep as a map: micro-batch down, seq-len across, each cell a point that was run.

Called by `pilotkit.report.sections`. Shows what was measured at each point and invents nothing between points.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from markupsafe import Markup

from pilotkit.records.record import Record
from pilotkit.report import svg
from pilotkit.report.tables import lookup
from pilotkit.report.values import status_words
from pilotkit.units import format_count

MICRO_BATCH, SEQ_LEN = "train.micro_batch_size", "train.seq_len"
_MARGIN_PERCENT, _CELL_PIXELS, _TOP_PIXELS = 20.0, 44.0, 24.0


def sweep_map(records: Iterable[Record]) -> Markup:
    """Tokens per second by micro-batch and seq-len; empty unless one of the two varies.

    Where several records share a cell (another key varies too) the fastest stands for it.
    """
    cells = _cells(records)
    batches = sorted({batch for batch, _ in cells})
    lengths = sorted({length for _, length in cells})
    if len(cells) < 2:
        return Markup("")
    speeds = [record.metrics["tokens_per_second"] for record in cells.values() if "tokens_per_second" in record.metrics]
    slowest, fastest = min(speeds, default=0.0), max(speeds, default=0.0)
    width = (100.0 - _MARGIN_PERCENT) / len(lengths)
    shapes = [svg.text("batch \\ seq", x=0, y=15, css="small muted")]
    for column, length in enumerate(lengths):
        x = _MARGIN_PERCENT + (column + 0.5) * width
        shapes.append(svg.text(str(length), x=x, y=15, css="small", anchor="middle"))
    for row, batch in enumerate(batches):
        y = _TOP_PIXELS + row * _CELL_PIXELS
        shapes.append(svg.text(str(batch), x=0, y=y + 25, css="small"))
        for column, length in enumerate(lengths):
            x = _MARGIN_PERCENT + column * width
            record = cells.get((batch, length))
            speed = record.metrics.get("tokens_per_second", slowest) if record is not None else slowest
            shade = (speed - slowest) / (fastest - slowest) if fastest > slowest else 0.0
            shapes += _cell(record, x=x, y=y, width=width, shade=shade)
    height = _TOP_PIXELS + len(batches) * _CELL_PIXELS
    return svg.svg(shapes, height=height, label="Tokens per second by micro-batch and sequence length")


def _cells(records: Iterable[Record]) -> dict[tuple[Any, Any], Record]:
    cells: dict[tuple[Any, Any], Record] = {}
    for record in records:
        key = lookup(record.config, MICRO_BATCH), lookup(record.config, SEQ_LEN)
        if None in key:
            continue
        known = cells.get(key)
        speed = record.metrics.get("tokens_per_second", -1.0)
        if known is None or speed > known.metrics.get("tokens_per_second", -1.0):
            cells[key] = record
    return cells


def _cell(record: Record | None, *, x: float, y: float, width: float, shade: float) -> list[Markup]:
    """One cell: `shade` runs from 0 (slowest) to 1 (fastest); a point without a speed says its status instead."""
    if record is None:
        css, words, title, opacity = "track", "not run", "", 0.5
    elif (speed := record.metrics.get("tokens_per_second")) is not None:
        css, words, title = "data", format_count(speed), f"{format_count(speed)} tokens/s ({record.run_id})"
        opacity = 0.10 + 0.45 * shade
    else:
        words = "no fit" if record.status == "does_not_fit" else status_words(record.status)
        css, title, opacity = "fault", f"{status_words(record.status)} ({record.run_id})", 0.14
    text_css = {"track": "tiny muted", "data": "tiny", "fault": "tiny fault-text"}[css]
    return [
        svg.rect(css, x=x + 0.3, width=width - 0.6, y=y + 2, height=_CELL_PIXELS - 4, title=title, opacity=opacity),
        svg.text(words, x=x + width / 2, y=y + 26, css=text_css, anchor="middle"),
    ]
