"""Did a checkpoint come back in another shape? Compares what was saved in one with what was restored in the other.

Called by the stage `restore`; pure arithmetic over what `worker.phases.restore_shapes` left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pilotkit.decide.continuation import Row, row

Seen = Mapping[str, Any]


def compare_shapes(name: str, saved: Seen, restored: Seen, *, rtol: float) -> Row:
    """One row: state and rows of data have to be equal, evaluation and losses within `rtol` (another order of sums)."""
    problem = _state(saved["state"], restored["state"]) or _rows(saved["row_ids"], restored["row_ids"])
    if problem is None and saved["lrs"] != restored["lrs"]:
        problem = f"learning rates: {restored['lrs']} instead of {saved['lrs']}"
    deviation = _deviation([saved["eval_loss"]], [restored["eval_loss"]])
    if problem is None and deviation > rtol:
        problem = f"evaluation: deviates by {deviation:.2g}, relative; restore.shape_rtol={rtol}"
    draws = saved["draws_random"] or restored["draws_random"]
    loss_deviation = _deviation(saved["losses"], restored["losses"])
    if problem is None and not draws and loss_deviation > rtol:
        problem = f"losses: deviate by {loss_deviation:.2g}, relative; restore.shape_rtol={rtol}"
    if problem is not None:
        return row(name, "FAIL", problem)
    num_rows = sum(len(rows) for rows in saved["row_ids"])
    num_parts = sum(len(parts) for parts in saved["state"].values())
    losses = "not compared, as the model draws random numbers" if draws else f"within {loss_deviation:.2g}"
    note = f"{num_parts} parts bit for bit; the next {num_rows} rows the same, in order"
    return row(name, "PASS", f"{note}; evaluation within {deviation:.2g}, losses {losses}")


def _state(saved: Mapping[str, Mapping[str, str]], restored: Mapping[str, Mapping[str, str]]) -> str | None:
    for component, parts in saved.items():
        found = restored.get(component, {})
        differing = [part for part in sorted(parts.keys() | found.keys()) if parts.get(part) != found.get(part)]
        if differing:
            return f"{component}: {len(differing)} of {len(parts)} parts differ, first {differing[0]}"
    return None


def _rows(expected: list[list[int]], found: list[list[int]]) -> str | None:
    if expected == found:
        return None
    flat_expected, flat_found = ([row for step in steps for row in step] for steps in (expected, found))
    skipped = [row for row in flat_expected if row not in set(flat_found)]
    other = [row for row in flat_found if row not in set(flat_expected)]
    return f"data position: {len(skipped)} rows skipped (first {skipped[:3]}), {len(other)} others (first {other[:3]})"


def _deviation(expected: list[float], found: list[float]) -> float:
    """Largest relative difference; infinite where one of the two is not a number."""
    pairs = list(zip(expected, found, strict=True))
    if not all(math.isfinite(value) for pair in pairs for value in pair):
        return math.inf
    return max((abs(one - other) / max(abs(one), 1e-30) for one, other in pairs), default=0.0)
