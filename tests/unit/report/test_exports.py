"""Markdown and CSV of a study: readable by their readers, and what is text stays text."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from pilotkit.report.exports import COLUMNS, metric_rows, to_csv, to_markdown
from pilotkit.report.points import write_parquet


def test_csv_has_every_metric_with_its_origin(sample: dict[str, Any], tmp_path: Path) -> None:
    records = list(sample["go_records"](tmp_path).values())
    rows = list(csv.DictReader(io.StringIO(to_csv(records, study="tiny"))))
    assert len(rows) == sum(len(record.metrics) for record in records)
    step = next(row for row in rows if row["stage"] == "measure" and row["metric"] == "step_seconds")
    assert (float(step["value"]), step["origin"], step["study"]) == (0.3141, "measured", "tiny")


def test_parquet_is_the_same_table_typed(sample: dict[str, Any], tmp_path: Path) -> None:
    records = list(sample["go_records"](tmp_path).values())
    rows = metric_rows(records, study="=tiny")
    assert write_parquet(tmp_path / "report.parquet", COLUMNS, rows)
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(tmp_path / "report.parquet")
    assert table.column_names == list(COLUMNS)
    assert str(table.schema.field("value").type) == "double"
    assert table.to_pylist() == rows
    as_text = list(csv.DictReader(io.StringIO(to_csv(records, study="tiny"))))
    assert [float(row["value"]) for row in as_text] == [row["value"] for row in rows]


@pytest.mark.parametrize("name", ["=1+1", "+cmd", "@x", "-2"])
def test_csv_runs_nothing_in_a_spreadsheet(sample: dict[str, Any], tmp_path: Path, name: str) -> None:
    rows = list(csv.reader(io.StringIO(to_csv(sample["go_records"](tmp_path).values(), study=name))))
    assert {row[0] for row in rows[1:]} == {f"'{name}"}


def test_markdown_says_the_verdict_and_the_three_strongest_reasons(sample: dict[str, Any], tmp_path: Path) -> None:
    records = sample["go_records"](tmp_path)
    text = to_markdown(list(records.values()), verdict=sample["verdict_of"](records), title="tiny on cpu")
    lines = text.splitlines()
    assert lines[0] == "## tiny on cpu: GO"
    assert sum(line.startswith("- ") for line in lines) == 3
    assert "| cpu | 2 | 7 days |" in text
    assert "| accepted | 2 x cpu, ddp, fp32, micro-batch 4 |" in text
    assert "step, median 314.1 ms (measured)" in text
    rows = [line for line in lines if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)


def test_markdown_lists_commands_and_escapes(sample: dict[str, Any], tmp_path: Path) -> None:
    records = sample["incomplete_records"](tmp_path)
    hostile = "a|b <img src=x> *bold*\n# head"
    text = to_markdown(list(records.values()), verdict=sample["verdict_of"](records), title=hostile)
    assert text.startswith("## a\\|b \\<img src=x\\> \\*bold\\* # head: INCOMPLETE")
    assert "(`pilotkit stage=prove 'name=tiny on cpu'`)" in text
    assert "NO VERDICT" in to_markdown([], verdict=None, title="t")
