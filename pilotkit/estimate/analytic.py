"""A figure by rule of thumb for a model that can be built but not traced. Called by the worker's phase when
`estimate.fallback=analytic`; marked as analytic everywhere it goes.

States are counted: parameters, gradients and the optimizer's two moments, sharded as configured. Activations are what
each linear layer and norm keeps of its input, and the logits three times over (kept, in float32, and their
gradient). A model whose work is not in such layers keeps more than this: no band can be given.
"""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from pilotkit.estimate.model import FakeModel
from pilotkit.train import adamw8bit
from pilotkit.train.parallelism import SHARDED
from pilotkit.train.precision import DTYPES

# Published runs hold 1 to 17 % more from the device than their tensors use.
RESERVED_OVER_ALLOCATED = 1.1
KEEPS_INPUT = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)
NUM_MOMENTS = {"adam": 2, "adamw": 2, "adamw8bit": 2, "sgd": 1}
FLOPS_PER_PARAM_AND_TOKEN = 6
NOTE = (
    "analytic: parameters, gradients and optimizer state are counted, activations are a rule of thumb that may be off "
    "by tens of percent"
)


def analytic(source: FakeModel, *, micro_batch_size: int, seq_len: int, reason: str) -> dict[str, Any]:
    """What `Prediction.to_dict` gives, from counts. `reason`: what kept the model from being traced."""
    workload = source.workload
    shards = workload.dp_shard if workload.strategy in SHARDED else 1
    model, blocks = source.copy(num_blocks=None)
    params = math.ceil(sum(param.numel() * param.element_size() for param in model.parameters()) / shards)
    trained = sum(param.numel() * param.element_size() for param in model.parameters() if param.requires_grad)
    gradients = math.ceil(trained / shards)
    moments = NUM_MOMENTS[str(workload.optimizer["name"])] + bool(workload.optimizer.get("amsgrad"))
    if workload.optimizer["name"] == "sgd" and not workload.optimizer["momentum"]:
        moments = 0
    state = moments * gradients
    if workload.optimizer["name"] == adamw8bit.NAME:  # one byte an element
        state = moments * math.ceil(sum(param.numel() for param in model.parameters() if param.requires_grad) / shards)
    static = {"parameters": params, "optimizer_state": state}
    if workload.strategy == "ddp":
        static["buckets"] = gradients
    tokens = micro_batch_size * seq_len
    element = DTYPES[workload.precision.compute_dtype].itemsize
    inside = _kept(blocks, tokens * element) if blocks is not None else 0
    outside = _kept(model, tokens * element) - inside
    if workload.activation_checkpointing == "full" and blocks:
        # The input of each block, and all of one that is being recomputed.
        inside = tokens * element * _width(blocks[0]) * len(blocks) + inside // len(blocks)
    # Kept for backward, in float32, and the gradient of it.
    logits = tokens * _out_features(model) * (element + 4 + 4)
    # Gradients of earlier micro-batches are there: whole ones, unless each is reduced.
    earlier = 0 if workload.grad_accum_steps == 1 else gradients if workload.sync_each_micro_batch else trained
    at_backward = sum(static.values()) + inside + outside + logits + earlier
    at_optimizer = sum(static.values()) + gradients * (2 if workload.optimizer["implementation"] == "foreach" else 1)
    peak = max(at_backward, at_optimizer)
    kinds = {**static, "activations": inside + outside + logits}
    where = "backward" if at_backward >= at_optimizer else "optimizer"
    flops = FLOPS_PER_PARAM_AND_TOKEN * source.num_params * tokens * workload.grad_accum_steps
    return {
        "metrics": {
            "peak_allocated_bytes": peak,
            "native_reserved_bytes": round(peak * RESERVED_OVER_ALLOCATED),
            "expandable_reserved_bytes": round(peak * RESERVED_OVER_ALLOCATED),
            "first_step_peak_bytes": peak,
            "steady_step_peak_bytes": peak,
            "checkpoint_peak_bytes": sum(static.values()),
            **{f"{kind}_bytes": num_bytes for kind, num_bytes in static.items()},
            "num_params": source.num_params,
        },
        "details": {
            "method": "analytic",
            "peaks": [{"step": "steady step", "peak_bytes": peak, "where": f"{where}, by count", "kinds": kinds}],
            "peak_by_moment": {"backward": at_backward, "optimizer": at_optimizer},
            "memory_profile": [],
            "attention": [],
            "notes": [NOTE, f"not traced: {reason}"],
        },
        "work": {
            "kernels": [
                {
                    "kind": "matmul",
                    "dtype": workload.precision.compute_dtype,
                    "num_flops": float(flops),
                    "num_bytes": 0,
                    "num_kernels": 0,
                }
            ],
            "collectives": [],
        },
    }


def _kept(module: nn.Module, bytes_per_feature: int) -> int:
    """Inputs of the layers that need theirs in backward."""
    found = [part for part in module.modules() if isinstance(part, KEEPS_INPUT)]
    return sum(_width_of(part) * bytes_per_feature for part in found)


def _width_of(layer: nn.Module) -> int:
    if isinstance(layer, nn.Linear):
        return layer.in_features
    if isinstance(layer, nn.GroupNorm):
        return layer.num_channels
    assert isinstance(layer, (nn.LayerNorm, nn.RMSNorm))
    return int(layer.normalized_shape[-1])


def _width(block: nn.Module) -> int:
    """Features between two blocks."""
    return next((_width_of(part) for part in block.modules() if isinstance(part, KEEPS_INPUT)), 0)


def _out_features(model: nn.Module) -> int:
    """Of the last linear layer: the logits of one token."""
    layers = [part for part in model.modules() if isinstance(part, nn.Linear)]
    return layers[-1].out_features if layers else 0
