"""The kernels an accelerator would take, on fake tensors of the device `cpu`. Entered by `trace` for a device option
other than `cpu`.

Attention, dropout and RMS norm save other tensors on an accelerator than on a processor. Autocast differs too: on an
accelerator it lets norms and softmax compute in float32. Knows which kernel torch's dispatcher prefers, and computes
nothing. Sources: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (which attention), aten/src/ATen/autocast_mode.h
(which functions run in float32), both of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's usual name
from torch import Tensor
from torch.distributed.tensor import DTensor

from pilotkit.estimate.fake import replaced

HALF = (torch.bfloat16, torch.float16)
MAX_FLASH_HEAD_SIZE = 256
# torch.autocast("cuda") casts the inputs of these to float32; the processor's leaves them in the lower format.
FLOAT32_FUNCTIONS = ("layer_norm", "group_norm", "softmax", "log_softmax", "cross_entropy", "nll_loss")


MATH = "_scaled_dot_product_attention_math"


@contextmanager
def accelerator_kernels(*, fused_attention: bool, saw: Callable[[str], None]) -> Iterator[None]:
    """Inside, `torch.nn.functional` leads to the kernels that torch takes on an accelerator.

    Without `fused_attention` it is as where torch was built without it, or refuses it: plain operators. `saw` is told
    of plain attention, which is no operator that a trace could see.
    Functions are replaced and no function mode is entered: a mode is off inside `Tensor.backward`, where activation
    checkpointing runs the forward again.
    """

    def attention(*args: Any, **kwargs: Any) -> Tensor:  # no `partial`: torch.compile asks a function for its name
        return _attention(saw, fused_attention, *args, **kwargs)

    functional: Any = F
    replacements: dict[str, Callable[..., Any]] = {
        "scaled_dot_product_attention": attention,
        "dropout": _dropout,
        "rms_norm": _rms_norm,
        **{name: _in_float32(getattr(functional, name)) for name in FLOAT32_FUNCTIONS},
    }
    originals = {name: getattr(functional, name) for name in replacements}
    for name, function in replacements.items():
        setattr(functional, name, function)
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(functional, name, function)


@contextmanager
def compiled_update() -> Iterator[None]:
    """Inside, torchao's optimizer of 8 bits does what its compiled code does, and not each of its operators.

    Modelled: torch's code generator for processors (2.13, of torchao 0.18) makes one float32 copy of each quantized
    moment and its scales, for one parameter at a time; what it makes for an accelerator was not seen.
    """
    from torchao.optim import adam

    with replaced(adam, "single_param_adam", _update_8bit):
        yield


def _update_8bit(p: Tensor, grad: Tensor, _step: Tensor, *moments_and_rates: Any) -> None:
    """The memory and the traffic of the update, without its arithmetic."""
    scratch = []
    for moment in moments_and_rates[:3]:  # the third is there with amsgrad
        local: Any = moment.to_local() if isinstance(moment, DTensor) else moment
        if hasattr(local, "codes"):
            scratch += [torch.empty(local.shape, dtype=torch.float32), torch.empty_like(local.scale)]
            local.codes.add_(1)
        elif local is not None:
            local.add_(1)
    p.add_(grad)


def run_fake(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator on fake tensors. What it really returns, where torch's fake implementation is wrong: the
    statistics that batch norm keeps for backward have the dtype of its weights, not of its input, and products of
    groups (experts) take any floating format, not bfloat16 alone."""
    if func is torch.ops.aten._grouped_mm.default and args[0].dtype != torch.bfloat16:
        half = [value.to(torch.bfloat16) if index < 2 else value for index, value in enumerate(args)]
        return _like_in(func(*half, **kwargs), args[0].dtype)
    result = func(*args, **kwargs)
    if func is torch.ops.aten.native_batch_norm.default and args[1] is not None and args[1].dtype != args[0].dtype:
        return (result[0], *(torch.empty_like(part, dtype=args[1].dtype) for part in result[1:]))
    return result


def _like_in(result: Tensor, dtype: torch.dtype) -> Tensor:
    """An empty matrix, or one for each group, in another format; rows start at multiples of 16 bytes."""
    alignment = 16 // dtype.itemsize
    *groups, rows, columns = result.shape
    padded = -(-columns // alignment) * alignment
    strides = (rows * padded, padded, 1) if groups else (padded, 1)
    return torch.empty_strided(result.shape, strides, dtype=dtype)


def _attention(
    saw: Callable[[str], None],
    may_be_fused: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Flash where it may be used, memory-efficient where it may not, else the three plain operators."""
    query, key, value = _autocast(query, key, value)
    head_size = query.shape[-1]
    ops = torch.ops.aten
    result: Tensor
    is_flash = attn_mask is None and query.dtype in HALF and head_size <= MAX_FLASH_HEAD_SIZE
    if may_be_fused and is_flash and query.dim() == 4:
        padding = -head_size % 8  # the kernel takes multiples of 8, torch pads
        padded = [F.pad(part, (0, padding)) if padding else part for part in (query, key, value)]
        # Fewer key and value heads than query heads (enable_gqa) are taken as they are.
        result = ops._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale)[0]
        return result[..., :head_size] if padding else result
    if may_be_fused and not enable_gqa and query.dim() == 4:
        needs_grad = any(part.requires_grad for part in (query, key, value))
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            # torch turns a mask of yes and no into one of 0 and minus infinity
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, float("-inf"))
        if attn_mask is not None:
            attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
        result = ops._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, needs_grad, dropout_p, is_causal, scale=scale
        )[0]
        return result
    saw(MATH)
    result = ops._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]
    return result


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    dtype = torch.get_autocast_dtype("cpu")
    return tuple(tensor.to(dtype) for tensor in tensors)


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """One kernel that keeps a mask of one byte an element."""
    if not training or p == 0.0:
        return x
    result: Tensor = torch.native_dropout(x, p, True)[0]
    return x.copy_(result) if inplace else result


def _rms_norm(x: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """One kernel that keeps its input and one number a row; with a weight of another dtype, torch's plain operators."""
    if weight is not None and weight.dtype != x.dtype:
        return torch.rms_norm(x, normalized_shape, weight, eps)
    result: Tensor = torch.ops.aten._fused_rms_norm(x, list(normalized_shape), weight, eps)[0]
    return result


def _in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    def cast(value: Any) -> Any:
        return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value

    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return function(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            return function(*map(cast, args), **{name: cast(value) for name, value in kwargs.items()})

    return run
