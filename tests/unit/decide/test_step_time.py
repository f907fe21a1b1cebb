"""The roofline: each class of operators over the part of the device that bounds it."""

from __future__ import annotations

import pytest

from pilotkit.decide.step_time import Efficiency, Rates, StepTime, estimate_step_time

WORK = {
    "kernels": [
        {"kind": "matmul", "dtype": "bfloat16", "num_flops": 1e12, "num_bytes": 8e8, "num_kernels": 3},
        {"kind": "attention", "dtype": "bfloat16", "num_flops": 2e12, "num_bytes": 4e8, "num_kernels": 1},
        {"kind": "elementwise", "dtype": "float32", "num_flops": 0.0, "num_bytes": 4e9, "num_kernels": 9},
    ],
    "collectives": [{"name": "allgather_base_", "num_ranks": 4, "num_bytes": 4e9, "num_calls": 2}],
}


def _estimate(gradient_bytes: float = 0.0, **rates: float) -> StepTime:
    return estimate_step_time(
        WORK,
        rates=Rates(10e12, 10e9, 10e9, **rates),  # type: ignore[arg-type]
        gradient_bytes=gradient_bytes,
        dp_replicate=4,
        efficiency=Efficiency(matmul=0.5, attention=0.25, elementwise=0.8, link=0.6),
    )


def test_parts_and_band() -> None:
    """Products and attention take the time of their arithmetic and of their traffic."""
    time = _estimate()
    classes = {"matmul": 0.3, "attention": 0.85, "elementwise": 0.5, "launch": 0.0, "communication": 0.5}
    assert time.parts == pytest.approx(classes)
    assert (time.low_seconds, time.step_seconds, time.high_seconds) == pytest.approx((1.65, 1.9, 2.15))
    assert time.num_flops == 3e12


def test_gradients_that_the_trace_does_not_send_are_all_reduced() -> None:
    """Twice (n - 1) / n of the bytes go over the link."""
    assert _estimate(4e9).parts["communication"] == pytest.approx(0.5 + 2 * 4e9 * 0.75 / 6e9)


def test_launches_show_where_they_outlast_the_kernels() -> None:
    """13 kernels; on an accelerator the host runs ahead, a processor does one after the other."""
    assert _estimate(kernel_seconds=0.01).compute_seconds == pytest.approx(1.65)
    assert _estimate(kernel_seconds=0.2).compute_seconds == pytest.approx(2.6)
    assert _estimate(kernel_seconds=0.01, launches_ahead=False).compute_seconds == pytest.approx(1.78)
