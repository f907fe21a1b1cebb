"""A sweep as a flat table: one row a point, one column a value, for spreadsheets and data frames.

Called by the stage `sweep_collect`. Units are in the names of the columns, as in a record; a value that a point does
not have is empty, never zero.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pilotkit.records.record import Record
from pilotkit.report.tables import typed

Row = dict[str, Any]


def point_rows(
    records: Sequence[Record], *, varying: Sequence[str], more: Sequence[Mapping[str, Any]]
) -> tuple[list[str], list[Row]]:
    """Column names and rows. `more` are further columns of each record, which come before its metrics."""
    names = sorted({name for record in records for name in record.metrics})
    columns = ["status", "cause", *varying, *dict.fromkeys(key for item in more for key in item), *names, "folder"]
    rows = []
    for record, item in zip(records, more, strict=True):
        cause = record.problem.summary if record.problem else None
        values = {key: _number(typed(record.overrides, key)) for key in varying}
        rows.append(
            {
                "status": record.status,
                "cause": cause,
                **values,
                **item,
                **record.metrics,
                "folder": record.folder or None,
            }
        )
    return columns, rows


def to_csv(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """RFC 4180 text with a header."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, restval="", extrasaction="raise")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
    return stream.getvalue()


def write_parquet(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> bool:
    """Write the same table typed; False where pyarrow is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return False
    data = {name: _alike([row.get(name) for row in rows]) for name in columns}
    pyarrow.parquet.write_table(pyarrow.table(data), path)
    return True


def _alike(values: list[Any]) -> list[Any]:
    """A column holds one kind of value: text where they differ, real numbers where some are."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        return [None if value is None else float(value) for value in values] if float in kinds else values
    return values if len(kinds) <= 1 else [None if value is None else str(value) for value in values]


def _number(text: str | None) -> Any:
    for kind in (int, float):
        try:
            return kind(text or "")
        except ValueError:
            continue
    return text
