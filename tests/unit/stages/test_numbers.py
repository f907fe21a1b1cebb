"""Origins of a worker's numbers."""

from __future__ import annotations

from pilotkit.stages.numbers import as_metrics


def test_origins() -> None:
    metrics = as_metrics({"num_warmup_steps": 3, "step_seconds": 0.25, "mfu": float("nan")}, prefix="ddp_")
    assert metrics.values == {"ddp_num_warmup_steps": 3, "ddp_step_seconds": 0.25}
    assert metrics.origins == {"ddp_num_warmup_steps": "given", "ddp_step_seconds": "measured"}
