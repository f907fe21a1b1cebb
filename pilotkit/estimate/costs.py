"""FLOPs and bytes of one operator, and the size of one collective. Called by `recorder` for each kernel it sees.

Counts by shapes alone and knows no device: what a kernel costs in time is `roofline`'s. Causal attention counts half of
the square, as fused kernels skip the other half.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from pilotkit.estimate.events import Collective, Operator
from pilotkit.estimate.watching import tensors_of

# They allocate or reinterpret and move nothing.
FREE_OPERATORS = frozenset(
    f"aten::{name}"
    for name in (
        "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "detach", "alias",
        "view", "t", "resize_", "lift_fresh", "set_", "record_stream",
    )
)  # fmt: skip
CAUSAL_SHARE = 0.5


def operator_of(
    func: Any, args: Any, kwargs: Any, result: Any, *, made: bool, moment: str, block: int
) -> Operator | None:
    """What the operator computes and moves; None for one without a kernel."""
    name = func._schema.name
    if name in FREE_OPERATORS or name.startswith(("c10d", "_c10d", "fsdp::")) or (func.is_view and not made):
        return None
    outputs = list(tensors_of(result))
    num_bytes = sum(map(moved_bytes, tensors_of((args, tuple(kwargs.values()))))) + sum(map(moved_bytes, outputs))
    kind, num_flops = "elementwise", 0.0
    if "scaled_dot_product" in name:
        kind, num_flops = "attention", _attention_flops(name, args)
    elif func is torch.ops.aten._grouped_mm.default:
        kind, num_flops = "matmul", _grouped_flops(args[0], args[1])
    elif func._overloadpacket in flop_registry:
        kind, num_flops = "matmul", float(flop_registry[func._overloadpacket](*args, **kwargs, out_val=result))
    dtype = str(outputs[0].dtype).removeprefix("torch.") if outputs else "none"
    return Operator(name, kind, num_flops, num_bytes, dtype, moment, block)


def collective_of(name: str, args: Any, *, moment: str, block: int) -> Iterator[Collective]:
    """The collective with the larger of its two sides: the gathered tensor, or the one before it is scattered."""
    tensors = list(tensors_of(args))
    if tensors:
        group = next((value for value in args if isinstance(value, torch.ScriptObject)), None)
        yield Collective(
            name.removeprefix("c10d::").strip("_"), max(map(moved_bytes, tensors)), _num_ranks(group), moment, block
        )


def moved_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor that a kernel has to touch: an expanded dimension is read once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride else 1
    return elements * tensor.element_size()


def _attention_flops(name: str, args: Any) -> float:
    """(batch, heads, tokens, head size): two products forward, five backward, which recomputes the scores."""
    is_backward = "backward" in name
    query, key = (args[1], args[2]) if is_backward else (args[0], args[1])
    batch, heads, query_len, head_size = query.shape
    products = 5 if is_backward else 2
    return float(2 * products * batch * heads * query_len * key.shape[2] * head_size) * CAUSAL_SHARE


def _grouped_flops(left: Tensor, right: Tensor) -> float:
    """Experts: (rows, k) x (groups, k, n), or one product a group of rows; how rows fall to groups changes nothing."""
    groups = left.shape[0] if left.dim() == right.dim() == 3 else 1
    return float(2 * groups * left.shape[-2] * left.shape[-1] * right.shape[-1])


def _num_ranks(group: Any) -> int:
    try:
        return int(dist.ProcessGroup.unbox(group).size())
    except (AttributeError, TypeError, RuntimeError):
        return dist.get_world_size() if dist.is_initialized() else 1
