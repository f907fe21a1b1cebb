"""Estimates on the terminal: the run's own shape, the grid, the answers, and what was measured beside them.

Called by stage `estimate`. Shows; computes no figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from pilotkit.report.values import format_value
from pilotkit.units import format_bytes, format_count, format_seconds

KINDS = ("parameters", "gradients", "optimizer_state", "activations", "gathered", "buckets", "batch", "temporary")


def estimate_table(metrics: Mapping[str, float], details: Mapping[str, Any], *, hardware: str) -> Table:
    """One row a figure: peaks with where they stand and what for, overhead, and the verdict against the device."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for name, justify in (("estimated", "left"), ("value", "right"), ("note", "left")):
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    if details.get("method") == "analytic":
        table.add_row("method", "analytic", Text("not traced: states counted, activations by a rule of thumb"))
    if details.get("compiled"):
        table.add_row("torch.compile", details["compiled"]["how"], Text(compiled_words(details["compiled"])))
    for peak in details["peaks"]:
        note = f"{peak['where']}: {kinds_words(peak['kinds'])}"
        table.add_row(f"peak allocated, {peak['step']}", format_bytes(peak["peak_bytes"]), Text(note))
    if "plain_attention_peak_allocated_bytes" in metrics:
        plain = metrics["plain_attention_peak_allocated_bytes"]
        note = "where this build of torch has no fused attention for it; estimate.attention=fused or math says which"
        table.add_row("peak allocated, plain attention", format_bytes(plain), Text(note))
    for name, words in (("native", "native segments"), ("expandable", "expandable segments")):
        if f"{name}_reserved_bytes" in metrics:
            table.add_row(f"peak reserved, {words}", format_bytes(metrics[f"{name}_reserved_bytes"]), "replayed")
    for line in details.get("overhead") or ():
        table.add_row(Text(str(line["what"])), format_bytes(line["num_bytes"]), "not traced; estimate.* sets it")
    if details.get("memory_calibration", "uncalibrated") != "uncalibrated":
        low, high = format_bytes(metrics["device_used_low_bytes"]), format_bytes(metrics["device_used_high_bytes"])
        table.add_row("memory", "corrected", Text(f"{details['memory_calibration']}: {low} to {high} in use"))
    if details.get("assumed"):
        table.add_row("assumed", "", Text("; ".join(details["assumed"])))
    verdict = Text("fits", style="green") if details["fits"] else Text("does not fit", style="red")
    limit = format_bytes(metrics["memory_limit_bytes"])
    table.add_row(f"in use on {hardware}", format_bytes(metrics["device_used_bytes"]), Text(f"of {limit}: ") + verdict)
    if "step_seconds" in metrics:
        band = f"{format_seconds(metrics['step_low_seconds'])} to {format_seconds(metrics['step_high_seconds'])}"
        parts = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in details["step_parts"].items())
        table.add_row(
            "step", format_seconds(metrics["step_seconds"]), Text(f"{details['calibration']}, {band}: {parts}")
        )
        speed = format_value("tokens_per_second", metrics["tokens_per_second"])
        table.add_row("tokens per second", speed, Text(f"{details['calibration']}, all devices"))
    return table


def compiled_words(compiled: Mapping[str, Any]) -> str:
    """How a run that compiles was estimated."""
    if compiled["how"] == "uncompiled":
        return f"memory and time of the run uncompiled: {compiled['reason']}"
    count = compiled["num_graphs"]
    graphs = "1 graph" if count == 1 else f"{count} graphs"
    return f"{graphs}; kept for backward: torch's partitioner; fused kernels: a rule"


def grid_table(grid: Mapping[str, Any]) -> Table:
    """Memory in use by micro-batch (down) and sequence length (across); what does not fit is in brackets."""
    points = {(point["micro_batch_size"], point["seq_len"]): point for point in grid["points"]}
    lengths = sorted({seq_len for _, seq_len in points})
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("in use: batch \\ seq")
    for seq_len in lengths:
        table.add_column(str(seq_len), justify="right")
    for micro_batch_size in sorted({batch for batch, _ in points}):
        row = [points[micro_batch_size, seq_len] for seq_len in lengths]
        table.add_row(str(micro_batch_size), *map(_in_use, row))
    table.add_row("largest that fits", *(str(grid["largest_micro_batch"][str(seq_len)]) for seq_len in lengths))
    return table


def _in_use(point: Mapping[str, Any]) -> Text:
    text = format_bytes(point["needed_bytes"])
    return Text(text, style="green") if point["fits"] else Text(f"[{text}]", style="red")


def kinds_words(kinds: Mapping[str, float]) -> str:
    """`parameters 1.00 GiB, gradients 1.00 GiB`, largest first."""
    found = sorted(((kind, kinds[kind]) for kind in KINDS if kinds.get(kind)), key=lambda item: -item[1])
    return ", ".join(f"{kind.replace('_', ' ')} {format_bytes(num_bytes)}" for kind, num_bytes in found)


def answer_rows(details: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Title, columns and rows of each further question that was answered."""
    answers = details.get("answers") or {}
    if "largest_micro_batch" in answers:
        rows = [
            [
                str(item["seq_len"]),
                str(item["micro_batch_size"] or "none"),
                _bytes(item["held_bytes"]),
                item["bounded_by"],
            ]
            for item in answers["largest_micro_batch"]
        ]
        yield "Largest micro-batch that fits", ["seq-len", "micro-batch", "allocator holds", "bounded by"], rows
    if "longest_sequence" in answers:
        rows = [
            [
                str(item["micro_batch_size"]),
                str(item["seq_len"] or "none"),
                _bytes(item["held_bytes"]),
                item["bounded_by"],
            ]
            for item in answers["longest_sequence"]
        ]
        yield "Longest sequence that fits", ["micro-batch", "seq-len", "allocator holds", "bounded by"], rows
    if details.get("by_devices"):
        rows = [
            [
                str(item["num_devices"]),
                item["strategy"],
                f"{format_bytes(item['needed_bytes'])} of {format_bytes(item['allowed_bytes'])}",
                "fits" if item["fits"] else "does not fit",
                _rate(item["tokens_per_second"]),
            ]
            for item in details["by_devices"]
        ]
        yield "By number of devices", ["devices", "strategy", "in use", "", "tokens per second"], rows
    if details.get("hardware"):
        found = details["hardware"]
        best = found["cheapest"] or "none"
        rows = [
            [
                item["hardware"],
                str(item["num_devices"] or "none fits"),
                f"{format_bytes(item['needed_bytes'])} of {format_bytes(item['allowed_bytes'])}",
                _rate(item["tokens_per_second"]),
                _price(item["price_per_hour"]),
                _price(item["price_per_billion_tokens"]),
                item["calibration"],
            ]
            for item in found["options"]
        ]
        columns = ["hardware", "fewest", "in use", "tokens per second", "an hour", "10^9 tokens", "speed"]
        yield f"Cheapest that fits: {best}, {found['how']}", columns, rows


def answer_tables(details: Mapping[str, Any]) -> Iterator[Table]:
    """The further answers as tables of the terminal."""
    for title, columns, rows in answer_rows(details):
        yield _plain_table(title, columns, rows)


def comparison_rows(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Estimates beside measurements: columns and rows."""
    columns = [
        "measured",
        "shape",
        "step: estimated",
        "corrected",
        "measured",
        "left",
        "held out",
        "memory left",
        "lies in",
    ]
    return columns, [_comparison_row(row) for row in rows]


def comparison_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Estimates beside measurements on the terminal."""
    return _plain_table("Estimate beside measurement", *comparison_rows(rows))


def _comparison_row(row: Mapping[str, Any]) -> list[str]:
    cells = [str(row["source"]), f"{row['family']}, {row['shape']}"]
    if "step_measured_seconds" in row:
        raw, better, measured = (row[f"step_{name}_seconds"] for name in ("estimated", "corrected", "measured"))
        error = row["held_out_error"]
        cells += [format_seconds(raw), format_seconds(better), format_seconds(measured)]
        held_out = "" if error is None else f"{100 * math.expm1(error):+.1f} %"
        # Records of before have no such mark.
        cells += [f"{100 * (measured / better - 1):+.1f} %", "set aside" if row.get("is_set_aside") else held_out]
        found = max(row["attributed_seconds"].items(), key=lambda item: abs(item[1]), default=None)
        where = f"{found[0]} {format_seconds(found[1])}" if found is not None else ""
    else:
        cells += [""] * 5
        where = ""
    memory = [
        f"{name} {100 * (row[f'{name}_measured_bytes'] / row[f'{name}_corrected_bytes'] - 1):+.1f} %"
        for name in ("allocated", "reserved", "overhead")
        if row.get(f"{name}_corrected_bytes")
    ]
    # Records of before have no such mark.
    if row.get("is_memory_set_aside"):
        memory.append("set aside")
    return [*cells, ", ".join(memory), where]


def _plain_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _bytes(num_bytes: float | None) -> str:
    return "" if num_bytes is None else format_bytes(num_bytes)


def _rate(tokens: float | None) -> str:
    return "no time" if tokens is None else f"{format_count(tokens)}/s"


def _price(price: float | None) -> str:
    return "no price" if price is None else f"{price:,.2f}"
