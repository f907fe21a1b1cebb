"""FLOPs of a step and model FLOPs utilisation (MFU). Called by phases that report how well a device is used.

Counts model FLOPs as the PaLM paper does (arXiv:2204.02311, appendix B): backward costs twice the forward, also
where a fused attention kernel recomputes its scores. Never counts element-wise work, which is not in a peak either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pilotkit.meter.uncompiled import uncompiled

_SDPA = "_scaled_dot_product_{}"
_KERNELS = (
    "cudnn_attention",
    "efficient_attention",
    "flash_attention",
    "flash_attention_for_cpu",
    "fused_attention_overrideable",
)


def count_step_flops(run_forward: Callable[[], Tensor]) -> int:
    """FLOPs of one forward and backward; a multiply-add is two.

    `run_forward` returns the scalar loss. It is called once and gradients are left in `.grad`. Build the model
    without activation checkpointing: recomputation would be counted, and MFU would flatter it. Raises ValueError when
    the loss has no gradient.
    """
    with uncompiled(), FlopCounterMode(display=False, custom_mapping=_attention_formulas()) as counter:
        loss = run_forward()
        if not loss.requires_grad:
            raise ValueError("the loss does not require a gradient: nothing in the model can be trained")
        torch.autograd.backward(loss)
    return int(counter.get_total_flops())


def count_training_flops(run_forward: Callable[[], Any]) -> int:
    """FLOPs of one training pass from its forward alone: three times those, whatever backward recomputes.

    Needs no memory for backward and may be called on a model with activation checkpointing. `run_forward` is called
    once without gradients. Holds where every weight is trained: for frozen ones use `count_step_flops`.
    """
    counting = FlopCounterMode(display=False, custom_mapping=_attention_formulas())
    with torch.no_grad(), uncompiled(), counting as counter:
        run_forward()
    return 3 * int(counter.get_total_flops())


def count_executed_flops(run_step: Callable[[], object], *, recomputed_scores: bool = True) -> int:
    """FLOPs that one whole step really takes: recomputed activations and the scores of fused attention count again.

    For hardware utilisation, as the PaLM paper tells it apart from MFU. `run_step` runs forward, backward and optimizer
    once; element-wise work is not counted here either. `recomputed_scores=False` leaves those of fused attention out:
    without activation checkpointing that is what the model needs.
    """
    formulas = _attention_formulas(recomputing=recomputed_scores)
    with uncompiled(), FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        run_step()
    return int(counter.get_total_flops())


def mfu(tokens_per_second_per_device: float, num_flops_per_token: float, peak_flops: float) -> float:
    """Model FLOPs utilisation, 0 to 1: FLOP/s that the model needed over the device's dense peak (FLOP/s).

    With the FLOPs of `count_executed_flops` it is hardware utilisation. Raises ValueError for a peak of 0 or less.
    """
    if peak_flops <= 0:
        raise ValueError(f"peak_flops must be above 0, not {peak_flops}")
    return tokens_per_second_per_device * num_flops_per_token / peak_flops


def _attention_formulas(*, recomputing: bool = False) -> dict[Any, Any]:
    """Formulas for attention kernels: torch has none for the CPU's, and counts recomputed scores in backward.

    `recomputing`: with those scores, as a device does them.
    """
    formulas: dict[Any, Any] = {}
    backward = _backward_recomputing if recomputing else _backward
    for kernel in _KERNELS:
        # Which kernels exist depends on the torch version.
        for name, formula in ((_SDPA.format(kernel), _forward), (_SDPA.format(kernel) + "_backward", backward)):
            packet = getattr(torch.ops.aten, name, None)
            if packet is not None:
                formulas[packet] = formula
    return formulas


def _forward(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Shapes (batch, heads, tokens, head size). Two products: query with key, scores with value.

    Fewer key and value heads than query heads (grouped-query attention) take the same work. A causal mask is not
    taken off: the usual formula, 12 * layers * hidden * tokens for each token, has the whole square too.
    """
    batch, heads, query_len, head_size = query
    return 2 * batch * heads * query_len * key[2] * (head_size + value[3])


def _backward(_grad: Any, query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    return 2 * _forward(query, key, value)


def _backward_recomputing(
    _grad: Any, query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any
) -> int:
    """Five products: the scores again, and the gradients of scores, values, queries and keys."""
    batch, heads, query_len, head_size = query
    return 2 * batch * heads * query_len * key[2] * (3 * head_size + 2 * value[3])
