"""What people see: bars on a terminal, plain lines elsewhere, text as it is, and the log beside it."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.table import Table

from pilotkit.stages import console as module
from pilotkit.stages.console import Console

AWKWARD = [
    "[red]not red[/red]", "a[c]b", ":smile: :warning:", "\\[x]", "[/]", "größe-模型 📦", "x" * 500, "100 % of {it}",
]  # fmt: skip


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("text", AWKWARD, ids=ascii)
def test_a_line_is_what_was_given(tmp_path: Path, text: str) -> None:
    stream = io.StringIO()
    console = Console(stream)
    console.log = tmp_path / "driver.log"
    console.line(text, style="bold red")
    assert stream.getvalue() == f"{text}\n"
    stamp, _, logged = (tmp_path / "driver.log").read_text(encoding="utf-8").partition(" ")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", stamp)
    assert logged == f"{text}\n"


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    plain, terminal = io.StringIO(), Terminal()
    table = Table("stage", style="green")
    table.add_row("[bold]prove[/bold]")
    for stream in (plain, terminal):
        console = Console(stream)
        console.line("done", style="green")
        console.table(table)
        with console.progress("measure") as follow:
            follow({"label": "measure", "done": 1, "total": 2})
    assert "\x1b" not in plain.getvalue()
    assert "\x1b[32mdone" in terminal.getvalue()


def test_progress_without_a_terminal_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    console = Console(stream)
    console.log = tmp_path / "driver.log"
    with console.progress("pilot: pilot_ddp") as follow:
        for done in range(1, 31):
            now[0] += 1.0
            follow({"label": "ddp", "done": done, "total": 30})
    assert stream.getvalue() == "  pilot: pilot_ddp: 11 of 30\n  pilot: pilot_ddp: 22 of 30\n"
    logged = [line.partition(" ")[2] for line in (tmp_path / "driver.log").read_text(encoding="utf-8").splitlines()]
    assert logged == [
        "pilot: pilot_ddp: started",
        "  pilot: pilot_ddp: 11 of 30",
        "  pilot: pilot_ddp: 22 of 30",
        "pilot: pilot_ddp: ended after 30.0 s",
    ]


def test_a_log_that_cannot_be_written_is_left_out(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = Console(stream)
    console.log = tmp_path / "absent" / "driver.log"
    console.line("one")
    console.line("two")
    assert stream.getvalue() == "one\ntwo\n"
    assert console.log is None


def test_a_table_in_a_file_ends_its_lines_where_its_words_end() -> None:
    stream = io.StringIO()
    table = Table("name", "note")
    table.add_row("short", "")
    table.add_row("a longer one", "with words")
    Console(stream).table(table)
    lines = stream.getvalue().split("\n")
    assert "short" in stream.getvalue()
    assert (lines[0], lines[-3:]) == ("", [lines[-3], "", ""])
    assert [line for line in lines if line != line.rstrip()] == []
