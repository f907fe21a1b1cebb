"""The page: one HTML file that a person who pays can read, with every number's origin and the way to its record.

Called by the stages `report` and `all`, which write the text it returns. The page needs no network and
is whole without its script. Takes its date from the records, so that the same records give the same page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from markupsafe import Markup, escape

from pilotkit.chapters import CHAPTERS
from pilotkit.decide.verdict import Verdict, stage_command
from pilotkit.records.record import Record
from pilotkit.report.furniture import page_environment, page_furniture
from pilotkit.report.headline import headline
from pilotkit.report.heatmap import MICRO_BATCH, SEQ_LEN, sweep_map
from pilotkit.report.sections import section_of
from pilotkit.report.tables import lookup
from pilotkit.report.values import format_value, label_of, record_href, status_words
from pilotkit.report.view import Cell, Figure, TableView, tone_of

_SENTENCES = {
    "GO": "Every piece of evidence that this run needs is there, and none speaks against it.",
    "NO-GO": "Something that was run speaks against starting.",
    "INCOMPLETE": "Evidence is missing. This is neither a yes nor a no.",
}
NO_VERDICT = "NO VERDICT"


@dataclass(frozen=True)
class _Group:
    """One group of the configuration at a glance: names and texts."""

    name: str
    items: list[tuple[str, str]]


def render_page(
    records: Sequence[Record],
    *,
    verdict: Verdict | None,
    config_summary: Mapping[str, Any],
    title: str,
    page_dir: Path,
    sweep_records: Sequence[Record] = (),
    elsewhere: Mapping[str, Record] = MappingProxyType({}),
    language: str = "en",
) -> str:
    """The whole page as text.

    `records` are the newest of each stage; `config_summary` is the intended run, plain values or one level of
    groups; `page_dir` is the folder that the page will lie in, from which links to records are counted. `elsewhere`
    holds, by stage, records of the same study with other options, which are named where a stage was not run. Without a
    `verdict` the one in the record of stage `plan` is shown, and without that none.
    """
    by_stage = {record.stage: record for record in records}
    verdict = verdict or recorded_verdict(by_stage.get("plan"))
    overrides = max(records, key=lambda record: record.started_at).overrides if records else []
    sections = [
        section_of(
            chapter,
            record=by_stage.get(chapter.stage),
            command=stage_command(chapter.stage, overrides=overrides),
            page_dir=page_dir,
            elsewhere=elsewhere.get(chapter.stage),
        )
        for chapter in CHAPTERS
        if chapter.stage != "report"
    ]
    word = verdict.verdict if verdict else NO_VERDICT
    links = {record.run_id: record_href(record, page_dir=page_dir) for record in (*records, *sweep_records)}
    return (
        page_environment(language)
        .get_template("report.html.j2")
        .render(
            title=title,
            language=language,
            **page_furniture(),
            word=word,
            tone=tone_of(word),
            sentence=_SENTENCES.get(word, "Stage plan has not been run."),
            reasons=[_linked(reason, links=links) for reason in (verdict.reasons if verdict else [])],
            cautions=[_linked(text, links=links) for text in (verdict.cautions if verdict else [])],
            eyebrow=_eyebrow(title, config_summary),
            missing=[(_linked(item.what, links=links), item.command) for item in (verdict.missing if verdict else [])],
            headline=headline(by_stage["plan"].details) if "plan" in by_stage else [],
            verdict_command=None if verdict else stage_command("plan", overrides=overrides),
            newest=max((record.started_at for record in records), default=""),
            groups=_groups(config_summary),
            sections=sections,
            sweep_map=_sweep_figure(sweep_records),
            sweep_table=_sweep_view(sweep_records, page_dir=page_dir),
            tell=CHAPTERS[-1],
        )
    )


def recorded_verdict(plan: Record | None) -> Verdict | None:
    """The verdict that the record of `plan` holds."""
    plain = plan.details.get("verdict") if plan is not None else None
    return Verdict.from_dict(plain) if plain else None


def _eyebrow(title: str, summary: Mapping[str, Any]) -> str:
    """Which run this is: the study's name, the model, and what it trains on."""
    words = [
        title,
        *(str(summary[name]) for name in ("model", "hardware", "data") if isinstance(summary.get(name), str)),
    ]
    return " · ".join(words)


def _linked(text: str, *, links: Mapping[str, str | None]) -> Markup:
    """The escaped text, with each run id in it a link to its record."""
    known = {run_id: href for run_id, href in links.items() if run_id and href is not None}
    if not known:
        return escape(text)
    pattern = "|".join(re.escape(run_id) for run_id in sorted(known, key=len, reverse=True))
    pieces = re.split(rf"(?<![\w-])({pattern})(?![\w-])", text)
    anchor = Markup('<a href="{}">{}</a>')
    return Markup("").join(anchor.format(known[piece], piece) if piece in known else piece for piece in pieces)


def _groups(summary: Mapping[str, Any]) -> list[_Group]:
    """Single values first, as one group; then each nested mapping as a group of its own."""
    single = {name: value for name, value in summary.items() if not isinstance(value, Mapping)}
    groups = [_Group("run", [_item(*pair) for pair in single.items()])] if single else []
    for name, values in summary.items():
        if isinstance(values, Mapping) and values:
            groups.append(_Group(str(name), [_item(*pair) for pair in values.items()]))
    return groups


def _item(name: str, value: Any) -> tuple[str, str]:
    """A name with its value: numbers by the unit in the name, whole numbers with thin grouping, null as not set."""
    label = label_of(str(name))
    if value is None:
        return label, "not set"
    if isinstance(value, bool):
        return label, "yes" if value else "no"
    if isinstance(value, int | float):
        has_unit = str(name).endswith(("_bytes", "_seconds", "_per_second", "_hours"))
        return label, format_value(str(name), value) if has_unit else f"{value:,}"
    if isinstance(value, list | tuple):
        return label, ", ".join(map(str, value)) or "none"
    return label, str(value)


def _sweep_figure(records: Sequence[Record]) -> Figure | None:
    plot = sweep_map(records)
    return Figure("Tokens per second by micro-batch and seq-len", plot, "measured") if plot else None


def _sweep_view(records: Sequence[Record], *, page_dir: Path) -> TableView | None:
    """One row a sweep point, by the two keys of the map."""
    if not records:
        return None
    metrics = ("peak_allocated_bytes", "step_seconds", "tokens_per_second")
    rows = []
    for record in records:
        href = record_href(record, page_dir=page_dir)
        cells = [
            Cell(format_value(name, record.metrics[name]), record.origins.get(name, "origin not recorded"), href)
            if name in record.metrics
            else Cell("none", tone="quiet")
            for name in metrics
        ]
        batch, length = (lookup(record.config, key) or "not set" for key in (MICRO_BATCH, SEQ_LEN))
        status = Cell(status_words(record.status), tone=tone_of(record.status))
        rows.append([Cell(f"{batch} x {length}", href=href), status, *cells])
    return TableView(["micro-batch x seq-len", "status", "peak memory", "step", "tokens/s"], rows)
