"""Origins of a worker's numbers, and the words beside a doubtful one."""

from __future__ import annotations

import pytest

from pilotkit.stages.numbers import as_metrics, step_warnings

TIME = {"settled": True, "recompilations": [], "compile_limits": []}


def test_origins() -> None:
    metrics = as_metrics({"num_warmup_steps": 3, "step_seconds": 0.25, "mfu": float("nan")}, prefix="ddp_")
    assert metrics.values == {"ddp_num_warmup_steps": 3, "ddp_step_seconds": 0.25}
    assert metrics.origins == {"ddp_num_warmup_steps": "given", "ddp_step_seconds": "measured"}


@pytest.mark.parametrize(
    ("found", "warnings"),
    [
        ({"step_spread": 0.1, "num_measured_steps": 5, "num_alloc_retries": 0}, []),
        (
            {"step_spread": 0.2512, "num_measured_steps": 10},
            ["the step time is unsteady: its spread is 25.1 %, over the limit of 10.0 %"],
        ),
        ({"step_spread": 0.0, "num_measured_steps": 4.0}, ["only 4 steps were counted"]),
        (
            {"step_spread": 0.0, "num_measured_steps": 9, "num_alloc_retries": 2.0},
            ["the allocator had to retry 2 times: memory was all but full"],
        ),
    ],
    ids=["sound", "unsteady", "few", "retries"],
)
def test_warnings(found: dict[str, float], warnings: list[str]) -> None:
    assert step_warnings(found, max_spread=0.10, time=TIME) == warnings
