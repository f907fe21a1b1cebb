"""Attention kernels: what to compare them with, and whether a backend that the user counts on really runs.

Called by `pilotkit.worker.qualify.operators` and by phase `qualify`. A fused kernel of an accelerator has no form on
the CPU; the definition of attention (Vaswani et al. 2017, equation 1) has.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from pilotkit.worker.qualify.rows import FAIL, PASS, Row, words_of

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
_ON_ACCELERATORS = (
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
)


def reference_of(overload: Any) -> Any:
    """What to call on the CPU instead of an operator: itself, but for the attention kernels of accelerators."""
    name = getattr(overload, "name", lambda: "")().partition(".")[0]
    if name not in _ON_ACCELERATORS:
        return overload
    names = [argument.name for argument in overload._schema.arguments]

    def attention(*args: Any, **kwargs: Any) -> tuple[Tensor]:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        return (
            attention_by_definition(
                given["query"],
                given["key"],
                given["value"],
                bias=given.get("attn_bias"),
                is_causal=bool(given.get("is_causal", False)),
                scale=given.get("scale"),
            ),
        )

    return attention


def attention_by_definition(
    query: Tensor, key: Tensor, value: Tensor, *, bias: Tensor | None, is_causal: bool, scale: float | None
) -> Tensor:
    """softmax(q k^T * scale + bias) v over (batch, heads, length, width); the scale is 1/sqrt(width) by default."""
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1) @ value


def check_backend(name: str, *, device: torch.device, dtype: torch.dtype, tolerance: float) -> Row:
    """A small real call, forward and backward, with this backend alone."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, 4, 64, 64)
    plain = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]
    inputs = [tensor.to(device).requires_grad_(True) for tensor in plain]
    wide = [tensor.double().requires_grad_(True) for tensor in plain]
    expected = attention_by_definition(wide[0], wide[1], wide[2], bias=None, is_causal=True, scale=None)
    try:
        with sdpa_kernel([BACKENDS[name]]):
            got = scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], is_causal=True)
            gradients = torch.autograd.grad(got.sum(), inputs)
    except Exception as error:
        return Row("attention backend", name, FAIL, f"does not run here in {dtype}: {words_of(error)}")
    pairs = zip((got, *gradients), (expected, *torch.autograd.grad(expected.sum(), wide)), strict=True)
    worst = max(float((a.detach().cpu().double() - b).abs().max() / b.abs().max()) for a, b in pairs)
    if worst > 2 * tolerance:
        return Row("attention backend", name, FAIL, f"off by {worst:.3g}, {2 * tolerance:g} is allowed")
    return Row("attention backend", name, PASS, f"forward and backward within {2 * tolerance:g} of float64")
