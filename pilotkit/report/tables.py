"""Tables for the terminal: stages, sweep points, the prove card, the verdict.

Called by the stages and the front door, which print them with `table_console`. Returns rich tables and prints nothing.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pilotkit.records.record import Record
from pilotkit.report.values import format_hours, format_money, format_value, status_words
from pilotkit.units import format_chance

# A decision brings its own types, and with them NumPy: what only prints a card does not wait for it.
if TYPE_CHECKING:
    from pilotkit.decide.choice import Choice
    from pilotkit.decide.verdict import Verdict

PLAIN_WIDTH = 160
_STYLES = {
    "ok": "green",
    "PASS": "green",
    "GO": "bold green",
    "failed": "red",
    "mismatch": "red",
    "FAIL": "red",
    "NO-GO": "bold red",
    "does_not_fit": "red",
    "accepted": "green",
    "rejected": "red",
    "INCOMPLETE": "bold yellow",
}


def table_console(stream: IO[str]) -> Console:
    """A console that colours on a terminal; elsewhere plain text, wide enough that rows stay on one line."""
    if stream.isatty():
        return Console(file=stream)
    return Console(file=stream, width=PLAIN_WIDTH, color_system=None, force_terminal=False)


def to_text(table: Table, *, width: int = PLAIN_WIDTH) -> str:
    """The table as plain lines without trailing spaces, for logs and golden files."""
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, force_terminal=False).print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def stage_table(records: Iterable[Record]) -> Table:
    """One row a record, in the order given: stage, status, time, run id, and why when it is not ok."""
    table = _table("stage", "status", ">wall time", "run", "note")
    for record in records:
        wall = format_value("wall_seconds", record.wall_seconds)
        table.add_row(Text(record.stage), _status(record.status), wall, Text(record.run_id), Text(_note(record)))
    return table


def sweep_table(records: Iterable[Record], *, varying: Sequence[str]) -> Table:
    """One row a point. `varying` are the dotted configuration keys that differ; what a point lacks is a dash."""
    records = list(records)
    if records and all(record.stage == "plan" for record in records):
        return _plan_sweep(records, varying=varying)
    table = _table("status", *varying, ">peak memory", ">step time", ">tokens/s", "note")
    # What every point says is said once, below.
    notes = [_notes(record) for record in records]
    shared = [text for text in notes[0] if all(text in other for other in notes)] if len(records) > 1 else []
    if shared:
        table.caption, table.caption_justify = Text(f"every point: {'; '.join(shared)}"), "left"
    for record, own in zip(records, notes, strict=True):
        keys = [Text(_plain(lookup(record.config, key) or typed(record.overrides, key))) for key in varying]
        memory = _metric(record, "peak_allocated_bytes", "peak_rss_bytes")
        step = _metric(record, "step_seconds")
        throughput = _metric(record, "tokens_per_second").removesuffix("/s")
        note = record.problem.summary if record.problem else "; ".join(text for text in own if text not in shared)
        table.add_row(_status(record.status), *keys, memory, step, throughput, Text(note))
    return table


def _plan_sweep(records: Iterable[Record], *, varying: Sequence[str]) -> Table:
    """One row a plan: its verdict, and how likely and how dear the reservation is that it was asked about."""
    table = _table("verdict", *varying, ">probability", ">median", ">with buffer", ">cost", "note")
    for record in records:
        details = record.details
        asked = lookup(record.config, "reservation.name")
        found = next((item for item in details.get("reservations") or () if item["name"] == asked), None)
        keys = [Text(_plain(lookup(record.config, key) or typed(record.overrides, key))) for key in varying]
        cells = ["-"] * 4
        if found is not None:
            hours = (found["run_hours"], found["target_hours"])
            times = [format_hours(value) for value in hours]
            cost = "-" if found["cost"] is None else format_money(found["cost"], str(details.get("currency") or ""))
            cells = [format_chance(found["probability"]), *times, cost]
        verdict = details.get("verdict") or {}
        lacking = len(verdict.get("missing") or ())
        note = _note(record) or (f"missing evidence: {lacking}" if lacking else "")
        table.add_row(_status(str(verdict.get("verdict") or record.status)), *keys, *cells, Text(note))
    return table


def varying_keys(overrides: Iterable[Sequence[str]]) -> list[str]:
    """The names that do not have the same value in every point, in the order in which they were typed."""
    values: dict[str, set[str]] = {}
    for words in overrides:
        for word in words:
            name, _, value = word.lstrip("+").partition("=")
            values.setdefault(name, set()).add(value)
    return [name for name, found in values.items() if len(found) > 1]


def verdict_table(verdict: Verdict) -> Table:
    """The verdict in the first row, then one row a reason and one for each missing piece with its command."""
    table = _table("verdict", "because")
    table.add_row(_status(verdict.verdict), Text(verdict.reasons[0] if verdict.reasons else ""))
    for reason in verdict.reasons[1:]:
        table.add_row("", Text(reason))
    for item in verdict.missing:
        table.add_row(Text("missing"), Text(item.what if item.command is None else f"{item.what}\n  {item.command}"))
    return table


def options_table(choice: Choice) -> Table:
    """One row an option of the study: decision, probability in each reservation, GPU-hours, cost, and the reason."""
    names = list(dict.fromkeys(outcome.name for item in choice.judged for outcome in item.option.outcomes))
    table = _table("decision", "option", *(f">P({name})" for name in names), ">GPU-hours", ">cost", "reason")
    for item in choice.judged:
        option, held = item.option, item.option.holding
        chances = {outcome.name: format_chance(outcome.probability) for outcome in option.outcomes}
        cost = held.cost if held is not None else None
        table.add_row(
            Text(item.decision, style=_STYLES.get(item.decision, "")),
            Text(option.label),
            *(Text(chances.get(name, "-")) for name in names),
            "-" if option.gpu_hours is None else format_value("gpu_hours", option.gpu_hours),
            "-" if cost is None else format_money(cost, choice.currency),
            Text(item.reason.removeprefix(option.label).lstrip(": ")),
        )
    return table


def card_table(card: Iterable[Mapping[str, Any]]) -> Table:
    """The card of `prove` or `qualify`, or the comparison of `restore`: one row an item, its verdict and its note."""
    table = _table("item", "verdict", "note")
    for row in card:
        named = [row[key] for key in ("item", "component", "check", "subject") if key in row]
        name = " ".join(map(str, named))
        table.add_row(Text(name), _status(str(row["verdict"])), Text(str(row.get("note") or "")))
    return table


def lookup(config: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key in nested mappings, None when there is no such key."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def typed(overrides: Iterable[str], key: str) -> str | None:
    """What was typed for a key: a point that never started has no other configuration."""
    for word in overrides:
        name, _, value = word.lstrip("+").partition("=")
        if name == key:
            return value
    return None


def _table(*columns: str) -> Table:
    """A table with a rule under its header and no frame. A `>` before a name sets that column to the right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    return table


def _status(status: str) -> Text:
    return Text(status_words(status), style=_STYLES.get(status, ""))


def _note(record: Record) -> str:
    return record.problem.summary if record.problem is not None else "; ".join(_notes(record))


def _notes(record: Record) -> list[str]:
    return [str(text) for text in record.details.get("warnings") or ()]


def _metric(record: Record, *names: str) -> str:
    """The first of these metrics that the record has."""
    for name in names:
        if name in record.metrics:
            return format_value(name, record.metrics[name])
    return "-"


def _plain(value: Any) -> str:
    """A group stands for itself by its name, or by the one field that two of them have instead."""
    if isinstance(value, Mapping):
        value = value.get("name") or value.get("strategy") or value.get("mode")
    return "-" if value is None else str(value)
