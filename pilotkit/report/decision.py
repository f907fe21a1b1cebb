"""The section of the plan: probability over days, options with their reasons, cost, scaling, what if, what would mend.

Called by `pilotkit.report.sections`. Arranges what the record holds; decides nothing of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pilotkit.records.record import Record
from pilotkit.report import curves
from pilotkit.report.values import format_hours, format_money, format_value, record_href
from pilotkit.report.view import Cell, Figure, Section, TableView
from pilotkit.units import format_chance, format_count, format_seconds

NOT_RUN, NO_PRICE = "not run", "no price"
_TONES = {"accepted": "good", "rejected": "bad", "open": "quiet"}


def arrange_plan(section: Section, record: Record, page_dir: Path) -> set[str]:
    """Fill the section; returns the names of the metrics that it shows."""
    details = record.details
    href = record_href(record, page_dir=page_dir)
    currency = str(details.get("currency") or "")
    reservations: list[Mapping[str, Any]] = details.get("reservations") or []
    section.lead = lead_of(details)
    if reservations:
        _probability(section, details, reservations, href=href)
        section.tables.append(_reservation_table(reservations, currency=currency, href=href))
    section.tables.append(_option_table(details.get("options") or [], currency=currency, href=href))
    section.tables.append(_command_table(details.get("options") or []))
    section.tables.append(_cost_table(details.get("cost") or [], currency=currency, href=href))
    for mode, found in (details.get("scaling") or {}).items():
        _scaling(section, str(mode), found, href=href)
    section.tables.append(_sensitivity_table(details.get("sensitivity") or [], currency=currency, href=href))
    section.tables.append(_remedy_table(details.get("remedies") or []))
    assumptions = details.get("assumptions") or {}
    if assumptions.get("failures_sentence"):
        section.notes.append(f"Assumed failures: {assumptions['failures_sentence']}.")
    return {"run_hours", "target_hours", *(name for name in record.metrics if name.startswith("probability_"))}


def lead_of(details: Mapping[str, Any]) -> str:
    """The recommendation in one sentence: which hardware, how many, how long, how sure, how much."""
    best = details.get("recommended")
    if not best:
        return ""
    currency = str(details.get("currency") or "")
    cost = f", {format_money(best['cost'], currency)}" if best.get("cost") is not None else ""
    return (
        f"Recommended: {best['label']} for {best['days']:g} days; done in time with "
        f"{format_chance(best['probability'])}, in {format_hours(best['run_hours'])} in the median{cost}."
    )


def _probability(
    section: Section, details: Mapping[str, Any], reservations: Sequence[Mapping[str, Any]], *, href: str | None
) -> None:
    target = float(reservations[0]["target_probability"])
    plot = curves.probability_curve(details.get("curve") or [], reservations=reservations, target=target)
    if plot:
        section.figures.append(Figure("Probability to be done over days", plot, "projected", href))


def _reservation_table(items: Sequence[Mapping[str, Any]], *, currency: str, href: str | None) -> TableView:
    rows = []
    for item in items:
        cost = item.get("cost")
        rows.append(
            [
                Cell(str(item["name"])),
                Cell("holds the run" if item["fits"] else "too short", tone="good" if item["fits"] else "bad"),
                Cell(format_chance(item["probability"]), "projected", href),
                Cell(format_hours(item["run_hours"]), "projected", href),
                Cell(format_hours(item["target_hours"]), "projected", href),
                Cell(format_value("hours_available", item["hours_available"]), "given", href),
                Cell(NO_PRICE, tone="quiet") if cost is None else Cell(format_money(cost, currency), "projected", href),
            ]
        )
    columns = ["reservation", "verdict", "probability", "median", "with buffer", "available", "cost"]
    return TableView(columns, rows)


def _option_table(items: Sequence[Mapping[str, Any]], *, currency: str, href: str | None) -> TableView:
    rows = []
    for item in items:
        decision, label = str(item["decision"]), str(item["label"])
        priced = [outcome for outcome in item["outcomes"] if outcome["cost"] is not None]
        costs = [outcome["cost"] for outcome in priced if outcome["fits"]]
        no_cost = Cell("none" if priced else NO_PRICE, tone="quiet")
        probability = max((outcome["probability"] for outcome in item["outcomes"]), default=None)
        rows.append(
            [
                Cell(label),
                Cell(decision, tone=_TONES[decision]),
                Cell(NOT_RUN) if probability is None else Cell(format_chance(probability), "projected"),
                Cell(format_money(min(costs), currency), "projected", href) if costs else no_cost,
                Cell(str(item["reason"]).removeprefix(label).lstrip(": ")),
            ]
        )
    return TableView(["option", "decision", "probability", "cost", "reason"], rows, title="Every option, and why")


def _command_table(items: Sequence[Mapping[str, Any]]) -> TableView:
    rows = [
        [Cell(str(item["label"])), Cell(str(command))]
        for item in items
        if item["decision"] == "open"
        for command in item.get("commands") or ()
    ]
    return TableView(["option", "command"], rows, title="What would decide the open options")


def _cost_table(lines: Sequence[Mapping[str, Any]], *, currency: str, href: str | None) -> TableView:
    names = ("devices", "egress", "storage", "energy", "total")
    rows = [
        [
            Cell(str(line["reservation"])),
            *(Cell(format_money(line[name], currency), "projected", href) for name in names),
            Cell(str(line["how"]), tone="quiet"),
        ]
        for line in lines
    ]
    return TableView(["reservation", *names, "how"], rows, title="What it costs")


def _scaling(section: Section, mode: str, found: Mapping[str, Any], *, href: str | None) -> None:
    points: list[Mapping[str, Any]] = found["points"]
    knee = found["knee"]
    plot = curves.scaling_curve(points, knee=knee)
    words = "projected" if found["calibrated"] else "projected, uncalibrated"
    if plot:
        section.figures.append(Figure(f"Speed by number of devices, {mode}", plot, words, href))
    section.notes.append(f"Scaling with a {mode}: knee at {knee['num_devices']} ({knee['cause']}); {knee['sentence']}.")
    shown = _doublings(points, keep=int(knee["num_devices"]))
    rows = [
        [
            Cell(str(point["num_devices"])),
            Cell(f"{format_count(point['tokens_per_second'])}/s", str(point["origin"]), href),
            Cell(f"{format_count(point['low'])} to {format_count(point['high'])}"),
            Cell(format_seconds(point["compute_seconds"])),
            Cell(format_seconds(point["communication_seconds"])),
            Cell(format_seconds(point["input_seconds"])),
            Cell(f"{100 * point['goodput']:.1f} %"),
        ]
        for point in shown
    ]
    columns = ["devices", "tokens", "band", "compute", "communication", "input", "goodput"]
    section.tables.append(TableView(columns, rows, title=f"A step by number of devices, {mode}"))


def _doublings(points: Sequence[Mapping[str, Any]], *, keep: int) -> list[Mapping[str, Any]]:
    """A table of a few lines: powers of two, the knee, what was measured, the last."""
    return [
        point
        for index, point in enumerate(points)
        if (count := int(point["num_devices"])) & (count - 1) == 0
        or count == keep
        or point["origin"] != "projected"
        or index == len(points) - 1
    ]


def _sensitivity_table(rows: Sequence[Mapping[str, Any]], *, currency: str, href: str | None) -> TableView:
    if not rows:
        return TableView([], [])
    names = list(rows[0]["probabilities"])
    has_cost = any(row["cost"] is not None for row in rows)
    body = [
        [
            Cell(str(row["what"])),
            *(Cell(format_chance(row["probabilities"][name]), "projected", href) for name in names),
            Cell(format_hours(row["target_hours"]), "projected", href),
            *([Cell(format_money(row["cost"], currency), "projected", href)] if has_cost else []),
        ]
        for row in rows
    ]
    columns = ["what if", *names, "with buffer", *(["cost"] if has_cost else [])]
    return TableView(columns, body, title="If an assumption is wrong")


def _remedy_table(items: Sequence[Mapping[str, Any]]) -> TableView:
    rows = [
        [
            Cell(str(item["what"])),
            Cell("enough" if item["enough"] else "not enough", tone="good" if item["enough"] else "quiet"),
            Cell(str(item["sentence"])),
        ]
        for item in items
    ]
    return TableView(["change", "alone", "how"], rows, title="What would have to change")
