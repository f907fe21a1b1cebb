"""The words beside a doubtful step time, and of parameters that nothing trains."""

from __future__ import annotations

from typing import Any

import pytest

from pilotkit.doubts import step_doubts, unreached_doubts

TIME: dict[str, Any] = {"settled": True, "recompilations": [], "compile_limits": []}


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
        (
            {"step_spread": 0.0, "num_measured_steps": 9, "step_mean_seconds": 1.0, "between_steps_seconds": 0.05},
            [],
        ),
        (
            {"step_spread": 0.0, "num_measured_steps": 9, "mfu": 0.9, "hfu": 1.5},
            [
                "hfu is 1.5, and no device does more than its peak: either hardware.peak_flops is not this device's, "
                "or the steps ended before their work did"
            ],
        ),
    ],
    ids=["sound", "unsteady", "few", "retries", "little between", "faster than the peak"],
)
def test_of_step_times(found: dict[str, float], warnings: list[str]) -> None:
    assert step_doubts(found, max_spread=0.10, time=TIME) == warnings


def test_of_compilations_in_counted_steps() -> None:
    again = [{"function": "forward", "reason": "size mismatch at index 0. expected 4, actual 3"}]
    found = {"step_spread": 0.0, "num_measured_steps": 9.0, "recompile_seconds": 1.5}
    assert step_doubts(found, max_spread=0.1, time={**TIME, "recompilations": again}) == [
        "1 compilation of forward fell into the counted steps and took 1.50 s (size mismatch at index 0. expected 4, "
        "actual 3): these times are no steady state; give every batch one shape (pad to it, leave out a smaller last "
        "batch) and keep numbers that change out of modules"
    ]


@pytest.mark.parametrize(
    ("parameters", "doubts"),
    [
        ({}, []),
        (
            {"extra.weight": 15, "extra.bias": 15},
            [
                "no gradient reached extra.bias, extra.weight in any of 15 steps: nothing trains them; freeze them "
                "(requires_grad=False) if that is meant, else look for what cuts them off (detach, no_grad, argmax, "
                "whole numbers). DDP refuses them"
            ],
        ),
        (
            {"experts.1.weight": 7},
            [
                "no gradient reached experts.1.weight in up to 7 of 15 steps: DDP, FSDP and HSDP need "
                "parallelism.find_unused_parameters=true for that"
            ],
        ),
    ],
    ids=["all reached", "never", "at times"],
)
def test_of_parameters_without_a_gradient(parameters: dict[str, int], doubts: list[str]) -> None:
    assert unreached_doubts({"num_steps": 15, "parameters": parameters}) == doubts
