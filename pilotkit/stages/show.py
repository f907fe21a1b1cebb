"""What a stage found, on the terminal: the card of a proof, or the one sentence that matters. Called at its end."""

from __future__ import annotations

from pilotkit.records.record import Record
from pilotkit.report.tables import card_table
from pilotkit.stages.console import Console
from pilotkit.units import format_bytes, format_count, format_seconds

MOST_ROWS = 40
"""A longer card shows what did not pass; the record has all of it."""


def show(record: Record, console: Console) -> None:
    """Print the result of one stage; a stage whose own lines say it already prints nothing."""
    rows = record.details.get("card") or record.details.get("comparison")
    if rows and record.stage in ("prove", "restore", "qualify"):
        console.table(card_table([row for row in rows if row["verdict"] != "PASS" or len(rows) <= MOST_ROWS]))
    elif record.stage == "measure" and "step_seconds" in record.metrics:
        metrics = record.metrics
        console.line(
            f"  a step takes {format_seconds(metrics['step_seconds'])} "
            f"(median of {metrics['num_measured_steps']:.0f}, p95 {format_seconds(metrics['step_p95_seconds'])}), "
            f"{format_count(metrics['tokens_per_second'])} tokens/s, "
            f"peak {format_bytes(metrics['peak_allocated_bytes'])} of {format_bytes(metrics['memory_limit_bytes'])}"
        )
    elif record.stage == "pilot" and record.details.get("recommendation"):
        console.line(f"  {record.details['recommendation']['reason']}")
