"""The same decision for other readers: Markdown for a pull request, CSV for a notebook or a spreadsheet.

Called by stage `report`. Takes records and returns text; writes nothing.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pilotkit.decide.verdict import Verdict
from pilotkit.records.record import Record
from pilotkit.report.headline import Fact, headline
from pilotkit.report.values import format_value, label_of, status_words

COLUMNS = ("study", "stage", "run_id", "status", "metric", "value", "origin")
STRONGEST = 3
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet runs a text cell that begins with one of these."""


def to_csv(records: Iterable[Record], *, study: str) -> str:
    """One row a metric of each record, in the order given: long and plain, so that any tool reads it.

    Values are in their stored unit (the suffix of the name); text that a spreadsheet would run is quoted.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in metric_rows(records, study=study):
        writer.writerow([repr(cell) if isinstance(cell, float) else _inert(cell) for cell in row.values()])
    return stream.getvalue()


def metric_rows(records: Iterable[Record], *, study: str) -> list[dict[str, Any]]:
    """`COLUMNS` of every metric: texts, and `value` as a real number. For `pilotkit.report.points.write_parquet`."""
    return [
        dict(
            zip(
                COLUMNS,
                (
                    study,
                    record.stage,
                    record.run_id,
                    record.status,
                    metric,
                    float(value),
                    record.origins.get(metric, ""),
                ),
                strict=True,
            )
        )
        for record in records
        for metric, value in record.metrics.items()
    ]


def to_markdown(records: Sequence[Record], *, verdict: Verdict | None, title: str) -> str:
    """The verdict with its three strongest reasons, the headline, what is missing, options, and stages."""
    plan = next((record for record in records if record.stage == "plan"), None)
    details: Mapping[str, Any] = plan.details if plan is not None else {}
    word = verdict.verdict if verdict is not None else "NO VERDICT"
    lines = [f"## {_plain(title)}: {word}", ""]
    lines += [f"- **{_plain(text)}**" for text in (verdict.cautions if verdict is not None else [])]
    lines += [f"- {_plain(reason)}" for reason in (verdict.reasons[:STRONGEST] if verdict is not None else [])]
    facts = headline(details)
    if facts:
        lines += ["", *_table([fact.name for fact in facts], [[_fact(fact) for fact in facts]])]
    missing = verdict.missing if verdict is not None else []
    if missing:
        lines += ["", "Missing:", ""]
        lines += [f"- {_plain(item.what)}" + (f" (`{item.command}`)" if item.command else "") for item in missing]
    options: list[Mapping[str, Any]] = details.get("options") or []
    if options:
        rows = [[str(item["decision"]), str(item["label"]), str(item["reason"])] for item in options]
        lines += ["", *_table(["decision", "option", "reason"], rows)]
    rows = [[record.stage, status_words(record.status), _facts(record), record.run_id] for record in records]
    lines += ["", *_table(["stage", "status", "figures", "run"], rows)]
    return "\n".join(lines) + "\n"


def _fact(fact: Fact) -> str:
    beside = " ".join(word for word in (fact.note, fact.figure) if word)
    return f"{fact.text} ({beside})" if beside else fact.text


def _facts(record: Record) -> str:
    """The few figures of a stage that a reviewer asks for, each with its origin."""
    wanted = ("step_seconds", "tokens_per_second", "peak_allocated_bytes", "total_seconds", "gpu_hours", "mfu")
    found = [name for name in wanted if name in record.metrics]
    origins = [record.origins.get(name, "origin not recorded") for name in found]
    texts = [f"{label_of(name)} {format_value(name, record.metrics[name])}" for name in found]
    return ", ".join(f"{text} ({origin})" for text, origin in zip(texts, origins, strict=True))


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    head = [_row(columns), _row(["---"] * len(columns))]
    return [*head, *(_row([_plain(cell) for cell in row]) for row in rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    """Text that stays text: no markup, no row of its own."""
    return re.sub(r"([\\`*_{}\[\]<>|])", r"\\\1", re.sub(r"\s+", " ", text))


def _inert(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
