"""What the user measured elsewhere: a table in CSV, one row a run (`estimate.measured_csv`).

Called by stage `estimate`.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Mapping
from typing import Any

from pilotkit.decide.measured import FIGURES, STRATEGIES, Measurement

SHAPE_COLUMNS = ("micro_batch_size", "seq_len", "num_devices", "grad_accum_steps")
COLUMNS = ("strategy", *SHAPE_COLUMNS, "tokens_per_second", *FIGURES)


class BadTable(ValueError):
    """The table cannot be read; the message says which row and why."""


def read_table(text: str, *, name: str, defaults: Mapping[str, Any], model: Mapping[str, Any]) -> list[Measurement]:
    """Rows of CSV, one a measured run of the configured model. `defaults` is the configured shape; `tokens_per_second`
    counts all devices. Raises BadTable.
    """
    reader = csv.DictReader(io.StringIO(text))
    columns = [column.strip() for column in reader.fieldnames or ()]
    unknown = [column for column in columns if column not in COLUMNS]
    if unknown or not columns:
        raise BadTable(f"unknown column {', '.join(unknown)}" if unknown else "the file is empty")
    reader.fieldnames = columns
    rows = [_row(row, number, name=name, defaults=defaults, model=model) for number, row in enumerate(reader, 1)]
    if not rows:
        raise BadTable("there is no row below the header")
    return rows


def _row(
    row: Mapping[str, str | None], number: int, *, name: str, defaults: Mapping[str, Any], model: Mapping[str, Any]
) -> Measurement:
    shape = {column: row.get(column) or defaults[column] for column in ("strategy", *SHAPE_COLUMNS)}
    if shape["strategy"] not in STRATEGIES:
        raise BadTable(f"row {number}: strategy {shape['strategy']} is none of {', '.join(STRATEGIES)}")
    if shape["strategy"] == "single" and not row.get("num_devices"):
        shape["num_devices"] = 1
    for column in SHAPE_COLUMNS:
        shape[column] = int(_positive(shape[column], column, number, whole=True))
    if (shape["strategy"] == "single") != (shape["num_devices"] == 1):
        raise BadTable(f"row {number}: {shape['strategy']} on {shape['num_devices']} devices")
    figures = {
        column: _positive(row[column], column, number)
        for column in (*FIGURES, "tokens_per_second")
        if (row.get(column) or "").strip()
    }
    if not figures:
        raise BadTable(f"row {number}: nothing was measured; give one of {', '.join((*FIGURES, 'tokens_per_second'))}")
    rate = figures.pop("tokens_per_second", None)
    if rate is not None:
        tokens = math.prod(int(shape[column]) for column in SHAPE_COLUMNS)
        figures.setdefault("step_seconds", tokens / rate)
    identity = json.dumps([model, shape, figures], sort_keys=True, default=str)
    key = "table-" + hashlib.sha256(identity.encode()).hexdigest()[:16]
    return Measurement(key, f"{name}, row {number}", "", shape, figures)


def _positive(value: object, column: str, number: int, *, whole: bool = False) -> float:
    try:
        found = float(str(value))
    except ValueError:
        found = math.nan
    if not math.isfinite(found) or found <= 0 or (whole and found != int(found)):
        kind = "a whole number above 0" if whole else "a number above 0"
        raise BadTable(f"row {number}: {column}={value} is not {kind}")
    return found
