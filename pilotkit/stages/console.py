"""What the user sees while stages run: bars on a terminal, plain lines otherwise, and the run's log beside them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rich.console import Console as RichConsole
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from pilotkit.report.tables import table_console, to_text

# Without a terminal nobody watches: a sign of life now and then is enough for a log.
PLAIN_EVERY_SECONDS = 10.0

OnProgress = Callable[[dict[str, Any]], None]


class Console:
    """Prints for people. `log` is set by the run that is going on; a log that cannot be written is left out."""

    def __init__(self, stream: IO[str]) -> None:
        self._rich: RichConsole = table_console(stream)
        self.log: Path | None = None

    def line(self, text: str, *, style: str = "") -> None:
        """One line, as it is: neither brackets nor colons are markup."""
        self._rich.print(Text(text), style=style, highlight=False, soft_wrap=True)
        self._to_log(text)

    def table(self, table: Table) -> None:
        """A table after an empty line."""
        self._rich.print()
        if self._rich.is_terminal:
            self._rich.print(table)
        else:  # a file or a pipe: nothing is filled up with spaces to a width that it does not have
            self._rich.print(Text(to_text(table, width=self._rich.width), end=""), highlight=False, soft_wrap=True)
        self._rich.print()

    @contextmanager
    def progress(self, title: str) -> Iterator[OnProgress]:
        """Follow one phase. Yields what takes the worker's progress lines (`label`, `done`, `total`)."""
        started = time.monotonic()
        self._to_log(f"{title}: started")
        if self._rich.is_terminal:
            with self._bar(title) as follow:
                yield follow
        else:
            yield self._lines(title)
        self._to_log(f"{title}: ended after {time.monotonic() - started:.1f} s")

    @contextmanager
    def live(self) -> Iterator[Callable[[Table], None] | None]:
        """A table that is drawn again in place. Yields what takes the next one; None where there is no terminal."""
        if not self._rich.is_terminal:
            yield None
            return
        with Live(console=self._rich, transient=True, auto_refresh=False) as shown:
            yield lambda table: shown.update(table, refresh=True)

    @contextmanager
    def _bar(self, title: str) -> Iterator[OnProgress]:
        columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._rich, transient=True) as bars:
            task = bars.add_task(escape(f"{title}: starting"), total=None)

            def follow(line: dict[str, Any]) -> None:
                bars.update(task, description=escape(title), completed=line["done"], total=line["total"])

            yield follow

    def _lines(self, title: str) -> OnProgress:
        last = time.monotonic()

        def follow(line: dict[str, Any]) -> None:
            nonlocal last
            if time.monotonic() - last > PLAIN_EVERY_SECONDS:
                last = time.monotonic()
                self.line(f"  {title}: {line['done']} of {line['total']}")

        return follow

    def _to_log(self, text: str) -> None:
        if self.log is None:
            return
        try:
            with open(self.log, "a", encoding="utf-8") as stream:
                stream.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")
        except OSError:
            self.log = None
