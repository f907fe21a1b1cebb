"""Terminal tables as plain text, whole."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from pilotkit.decide.verdict import Missing, Verdict
from pilotkit.records.record import Failure, Record
from pilotkit.report.tables import (
    card_table,
    lookup,
    stage_table,
    sweep_table,
    table_console,
    to_text,
    verdict_table,
)


def _record(stage: str, status: str = "ok", **more: Any) -> Record:
    return Record(f"{stage}-1", stage, status, "2026-03-01", wall_seconds=12.5, **more)


def test_stage_table() -> None:
    records = [
        _record("prove"),
        _record("measure", "does_not_fit", problem=Failure("out of memory [bold]in[/bold] backward")),
        _record("pilot", details={"warnings": ["unsteady"]}),
    ]
    assert to_text(stage_table(records)) == (
        "stage     status         wall time   run         note\n"
        "───────────────────────────────────────────────────────────────────────────────────────\n"
        "prove     ok               12.50 s   prove-1\n"
        "measure   does not fit     12.50 s   measure-1   out of memory [bold]in[/bold] backward\n"
        "pilot     ok               12.50 s   pilot-1     unsteady\n"
    )


def test_sweep_table_shows_what_varies() -> None:
    metrics = {"peak_allocated_bytes": 2.0**30, "step_seconds": 0.5, "tokens_per_second": 2000.0}
    point = {"train": {"seq_len": 128}, "precision": {"name": "bf16", "compute_dtype": "bfloat16"}}
    records = [
        _record("measure", config=point, metrics=metrics),
        _record("measure", "does_not_fit", config={"train": {"seq_len": 256}}, problem=Failure("out of memory")),
    ]
    assert to_text(sweep_table(records, varying=["train.seq_len", "precision"])) == (
        "status         train.seq_len   precision   peak memory   step time   tokens/s   note\n"
        "─────────────────────────────────────────────────────────────────────────────────────────────\n"
        "ok             128             bf16           1.00 GiB    500.0 ms        2 k\n"
        "does not fit   256             -                     -           -          -   out of memory\n"
    )


def test_what_every_point_of_a_sweep_says_is_said_once() -> None:
    records = [
        _record("estimate", config={"train": {"seq_len": 128}}, details={"warnings": ["uncalibrated"]}),
        _record("estimate", config={"train": {"seq_len": 256}}, details={"warnings": ["uncalibrated", "padded"]}),
    ]
    assert to_text(sweep_table(records, varying=["train.seq_len"])) == (
        "status   train.seq_len   peak memory   step time   tokens/s   note\n"
        "────────────────────────────────────────────────────────────────────\n"
        "ok       128                       -           -          -\n"
        "ok       256                       -           -          -   padded\n"
        "every point: uncalibrated\n"
    )


def test_verdict_table() -> None:
    missing = [Missing("restore: not run", "pilotkit stage=restore"), Missing("qualify: not built", None)]
    assert to_text(verdict_table(Verdict("INCOMPLETE", ["First.", "Second."], missing))) == (
        "verdict      because\n"
        "─────────────────────────────────────\n"
        "INCOMPLETE   First.\n"
        "             Second.\n"
        "missing      restore: not run\n"
        "               pilotkit stage=restore\n"
        "missing      qualify: not built\n"
    )


def test_card_table_of_prove_and_of_restore() -> None:
    rows = [
        {"item": "load", "verdict": "PASS", "note": "1 s"},
        {"component": "optimizer", "verdict": "FAIL", "note": None},
        {"check": "operator", "subject": "aten::mm bfloat16", "verdict": "PASS", "note": ""},
    ]
    assert to_text(card_table(rows)) == (
        "item                         verdict   note\n───────────────────────────────────────────\n"
        "load                         PASS      1 s\noptimizer                    FAIL\n"
        "operator aten::mm bfloat16   PASS\n"
    )


def test_no_colour_without_a_terminal() -> None:
    stream = io.StringIO()
    table_console(stream).print(stage_table([_record("prove")]))
    assert "\x1b" not in stream.getvalue()
    assert "prove-1" in stream.getvalue()


def test_colour_on_a_terminal(monkeypatch: Any) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    table_console(stream).print(stage_table([_record("prove")]))
    assert "\x1b[32mok" in stream.getvalue()


def test_sample_rows_stay_on_one_line(sample: dict[str, Any], tmp_path: Path) -> None:
    lines = to_text(stage_table(sample["no_go_records"](tmp_path).values())).splitlines()
    assert len(lines) == 2 + 7


def test_lookup() -> None:
    assert lookup({"a": {"b": 1}}, "a.b") == 1
    assert lookup({"a": {"b": 1}}, "a.c") is None
    assert lookup({"a": 1}, "a.b") is None
