"""A sweep's points from one fit are what a trace of each alone gives: memory to the byte, work to a FLOP."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from types import ModuleType

import pytest
from torch import Tensor

from pilotkit.estimate.grid import NotAffine, fit, holds_at
from pilotkit.estimate.points import fit_points, predict_all
from pilotkit.estimate.predict import Estimator

SHAPES = [(1, 160), (4, 32), (7, 96)]


@pytest.mark.parametrize(("strategy", "device_type"), [("single", "rocm"), ("fsdp", "cuda")])
def test_points_are_what_a_trace_of_each_gives(strategy: str, device_type: str, scenarios: ModuleType) -> None:
    """On `rocm` with plain attention beside the fused kernel, as it is not known which one torch has."""
    workload = scenarios.Workload(scenarios.build_gpt, scenarios.text_row, device_type=device_type)
    if strategy == "fsdp":
        build = partial(scenarios.build_llama, num_layers=6)
        workload = scenarios.spread(dataclasses.replace(workload, build_model=build), "fsdp", 4)
    estimator = Estimator(workload)
    found = predict_all(fit_points(estimator), SHAPES)
    for (micro_batch_size, seq_len), point in zip(SHAPES, found, strict=True):
        alone = estimator.predict(micro_batch_size=micro_batch_size, seq_len=seq_len, both_attentions=True).to_dict()
        assert point == alone
        assert ("plain_attention_peak_allocated_bytes" in point["metrics"]) == (device_type == "rocm")


def test_lengths_that_kernels_round_up_are_not_those_of_the_fit(scenarios: ModuleType) -> None:
    workload = scenarios.Workload(scenarios.build_gpt, scenarios.text_row, device_type="cuda")
    estimator = Estimator(workload)
    grid = fit(estimator)
    assert not holds_at(112)
    exact = estimator.predict(micro_batch_size=7, seq_len=112).peak_allocated_bytes
    # Statistics of memory-efficient attention: 128 rows of 112, 3 layers, 2 heads, 4 bytes.
    assert exact - grid.peak_allocated_bytes([7], [112])[0] == 7 * (128 - 112) * 3 * 2 * 4


def test_a_model_whose_work_is_no_polynomial_of_the_shape_is_refused(scenarios: ModuleType) -> None:
    def padded(seq_len: int) -> Mapping[str, Tensor]:
        row: Mapping[str, Tensor] = scenarios.text_row(1 << (seq_len - 1).bit_length())
        return row

    with pytest.raises(NotAffine):
        fit_points(Estimator(scenarios.Workload(scenarios.build_gpt, padded)))
