"""The sweep as a map: micro-batch down, seq-len across, each cell a point that was run.

Called by `pilotkit.report.sections`. Shows what was measured at each point and invents nothing between points.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from pilotkit.records.record import Record
from pilotkit.report import svg
from pilotkit.report.tables import lookup
from pilotkit.report.values import format_value, label_of, status_words
from pilotkit.units import format_count

MICRO_BATCH, SEQ_LEN = "train.micro_batch_size", "train.seq_len"
SPEED = ("tokens_per_second",)
MEMORY = ("peak_allocated_bytes", "peak_rss_bytes")
_MARGIN_PERCENT, _CELL_PIXELS, _TOP_PIXELS = 20.0, 44.0, 24.0


def sweep_map(records: Iterable[Record], *, metrics: Sequence[str] = SPEED) -> Markup:
    """One metric by micro-batch and seq-len; empty unless one of the two varies.

    The first of `metrics` that a record has is shown. Where several records share a cell (another key varies too) the
    fastest stands for it. A line is drawn where the fastest point that fits meets one that does not.
    """
    cells = _cells(records)
    batches = sorted({batch for batch, _ in cells})
    lengths = sorted({length for _, length in cells})
    if len(cells) < 2:
        return Markup("")
    values = [value for record in cells.values() if (value := _value(record, metrics)[1]) is not None]
    lowest, highest = min(values, default=0.0), max(values, default=0.0)
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
            value = _value(record, metrics)[1] if record is not None else None
            shade = (value - lowest) / (highest - lowest) if value is not None and highest > lowest else 0.0
            shapes += _cell(record, metrics, x=x, y=y, width=width, shade=shade)
    shapes += _frontier(cells, batches=batches, lengths=lengths, width=width)
    height = _TOP_PIXELS + len(batches) * _CELL_PIXELS
    return svg.svg(shapes, height=height, label=f"{label_of(metrics[0])} by micro-batch and sequence length")


def _frontier(
    cells: dict[tuple[Any, Any], Record], *, batches: Sequence[Any], lengths: Sequence[Any], width: float
) -> list[Markup]:
    """A line under the last micro-batch that fits, in each column where a larger one was seen not to."""
    lines = []
    for column, length in enumerate(lengths):
        statuses = [cells[batch, length].status if (batch, length) in cells else None for batch in batches]
        if "does_not_fit" not in statuses:
            continue
        y = _TOP_PIXELS + statuses.index("does_not_fit") * _CELL_PIXELS
        x = _MARGIN_PERCENT + column * width
        lines.append(svg.line("frontier", x1=x, x2=x + width, y1=y, y2=y))
    return lines


def _value(record: Record, metrics: Sequence[str]) -> tuple[str, float | None]:
    for name in metrics:
        if name in record.metrics:
            return name, record.metrics[name]
    return metrics[0], None


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


def _cell(
    record: Record | None, metrics: Sequence[str], *, x: float, y: float, width: float, shade: float
) -> list[Markup]:
    """One cell: `shade` runs from 0 (lowest) to 1 (highest); a point without a value says its status instead."""
    name, value = _value(record, metrics) if record is not None else (metrics[0], None)
    if record is None:
        css, words, title, opacity = "track", "not run", "", 0.5
    elif value is not None:
        words = format_count(value) if name == "tokens_per_second" else format_value(name, value)
        unit = " tokens/s" if name == "tokens_per_second" else ""
        css, title = "data", f"{words}{unit} ({record.run_id})"
        opacity = 0.10 + 0.45 * shade
    else:
        words = "no fit" if record.status == "does_not_fit" else status_words(record.status)
        css, title, opacity = "fault", f"{status_words(record.status)} ({record.run_id})", 0.14
    text_css = {"track": "tiny muted", "data": "tiny", "fault": "tiny fault-text"}[css]
    return [
        svg.rect(css, x=x + 0.3, width=width - 0.6, y=y + 2, height=_CELL_PIXELS - 4, title=title, opacity=opacity),
        svg.text(words, x=x + width / 2, y=y + 26, css=text_css, anchor="middle"),
    ]
