"""Validation quality beside throughput: what a GPU-hour of training gained, so that fast and worse is seen.

Called by stage `budget`. Reads losses and metrics that evaluations left; interprets no metric of the user's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pilotkit.records.record import Record
from pilotkit.units import HOUR

MIN_STEPS = 10
"""Fewer say nothing about how fast a loss falls."""


def quality_rows(records: Mapping[str, Record]) -> list[dict[str, Any]]:
    """One row an evaluation: stage, tokens seen, GPU-hours until then, loss, and the loss gained a GPU-hour.

    `loss_per_gpu_hour` is (first loss - this loss) / GPU-hours of the steps up to it: None where they are not known,
    and where a handful of steps says nothing.
    """
    rows = []
    prove = records.get("prove")
    if prove is not None and {"eval_loss", "first_loss", "num_steps"} <= prove.metrics.keys():
        step = _step_seconds(records)
        gpu_hours = None if step is None else prove.metrics["num_steps"] * step / HOUR
        rows.append(
            _row(
                prove,
                prove.metrics["eval_loss"],
                prove.metrics["first_loss"],
                gpu_hours,
                num_steps=prove.metrics["num_steps"],
            )
        )
    for record in records.values():
        for found in record.details.get("evaluations") or ():
            first = found.get("first_loss", record.metrics.get("first_loss"))
            hours = found.get("gpu_hours")
            rows.append(_row(record, float(found["loss"]), first, hours, tokens=found.get("tokens")))
    return rows


def _row(
    record: Record,
    loss: float,
    first: float | None,
    gpu_hours: float | None,
    *,
    tokens: float | None = None,
    num_steps: float | None = None,
) -> dict[str, Any]:
    enough = num_steps is None or num_steps >= MIN_STEPS
    gained = (first - loss) / gpu_hours if first is not None and gpu_hours and enough else None
    return {
        "stage": record.stage,
        "run_id": record.run_id,
        "tokens": tokens,
        "eval_loss": loss,
        "gpu_hours": gpu_hours,
        "loss_per_gpu_hour": gained,
    }


def _step_seconds(records: Mapping[str, Record]) -> float | None:
    measure = records.get("measure")
    return measure.metrics.get("step_seconds") if measure is not None else None
