"""Which kernel of attention an estimate takes, and what it holds: byte counts are worked out by hand."""

from __future__ import annotations

import dataclasses
from functools import partial
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from pilotkit.estimate.predict import predict
from pilotkit.estimate.trace import trace_step
from pilotkit.estimate.workload import Workload
from pilotkit.train.models.language import LanguageModelOutput
from pilotkit.units import GIB


class _Attends(nn.Module):
    """`plain`: the two products without softmax, in the format of the input."""

    def __init__(self, *, plain: bool) -> None:
        super().__init__()
        self.plain = plain
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, q: Tensor) -> LanguageModelOutput:
        x = q * self.scale
        y = (x @ x.transpose(-1, -2)) @ x if self.plain else nn.functional.scaled_dot_product_attention(x, x, x)
        return LanguageModelOutput(y.float().sum(), y)


def test_plain_attention_keeps_the_score_matrix_and_flash_does_not(scenarios: ModuleType) -> None:
    """4 x 32 heads x 4096 x 4096 in bfloat16: 4.0 GiB a layer. The kernel is named."""

    def row(_seq_len: int) -> dict[str, Tensor]:
        return {"q": torch.empty(32, 4096, 64, dtype=torch.bfloat16)}

    found = {}
    for plain in (True, False):
        workload = Workload(partial(_Attends, plain=plain), row, precision=scenarios.BF16, device_type="cuda")
        trace = trace_step(workload, micro_batch_size=4, seq_len=4096)
        found[plain] = {event.num_bytes for event in trace.events}
        assert trace.attention == ([] if plain else ["_scaled_dot_product_flash_attention"])
    assert 4 * GIB in found[True]
    assert max(found[False]) < GIB


class _Layers(nn.Module):
    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Attends(plain=False) for _ in range(num_layers))

    def forward(self, q: Tensor) -> LanguageModelOutput:
        for layer in self.layers:
            q = layer(q).logits
        return LanguageModelOutput(q.float().sum(), q)


@pytest.mark.parametrize(("keeps_format", "num_bytes"), [(True, 4 * GIB), (False, 8 * GIB)])
def test_where_fused_attention_is_not_known_both_peaks_are_there(
    keeps_format: bool, num_bytes: int, scenarios: ModuleType
) -> None:
    """Plain attention keeps the scores after softmax for backward, 4 x 32 x 4096 x 4096 a layer: 4.0 GiB in bfloat16,
    and 8.0 GiB in float32, in which torch computes them unless allow_fp16_bf16_reduction_math_sdp says otherwise."""

    def row(_seq_len: int) -> dict[str, Tensor]:
        return {"q": torch.empty(32, 4096, 128, dtype=torch.bfloat16)}

    allowed = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(keeps_format)
    try:
        found = [
            predict(
                Workload(partial(_Layers, count), row, precision=scenarios.BF16, device_type="rocm"),
                micro_batch_size=4,
                seq_len=4096,
            )
            for count in (1, 2)
        ]
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(allowed)
    one, two = (prediction.plain_attention for prediction in found)
    assert two.trace.attention == ["_scaled_dot_product_attention_math"]
    assert found[1].trace.attention == ["_scaled_dot_product_flash_attention"]
    a_layer = two.peak_allocated_bytes - one.peak_allocated_bytes
    # Beside the scores, query, key and value are kept as they were multiplied: at most four copies in float32.
    assert num_bytes <= a_layer <= num_bytes + 4 * 4 * 4 * 32 * 4096 * 128
    assert found[1].peak_allocated_bytes < 2 * GIB
    assert found[1].to_dict()["metrics"]["plain_attention_peak_allocated_bytes"] == two.peak_allocated_bytes
    known = predict(
        Workload(partial(_Layers, 1), row, precision=scenarios.BF16, device_type="rocm", attention="fused"),
        micro_batch_size=4,
        seq_len=4096,
    )
    assert known.plain_attention is None


def test_transformers_own_mask_is_not_there_where_a_real_run_has_none(scenarios: ModuleType) -> None:
    """It looks whether position numbers that it made itself are packed, and assumes so of fake ones: a mask of
    B x S x S, and an attention kernel that takes it."""
    workload = dataclasses.replace(scenarios.MIXTRAL, precision=scenarios.BF16, device_type="cuda")
    assert trace_step(workload, micro_batch_size=2, seq_len=64).attention == ["_scaled_dot_product_flash_attention"]

    def packed(seq_len: int) -> dict[str, Tensor]:
        return {**scenarios.text_row(seq_len), "position_ids": torch.arange(seq_len) % 32}

    masked = trace_step(dataclasses.replace(workload, read_row=packed), micro_batch_size=2, seq_len=64)
    assert masked.attention == ["_scaled_dot_product_efficient_attention"]
