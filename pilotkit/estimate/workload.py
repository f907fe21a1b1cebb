"""What is traced: the parts of one intended run, as `train` builds them. Made by the worker's phase, or by hand.

Holds factories and scalars; building happens in `trace`, under fake tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from pilotkit.train.precision import PrecisionPolicy

FP32 = PrecisionPolicy(param_dtype="float32", compute_dtype="float32", reduce_dtype="float32")
ADAMW: Mapping[str, Any] = {
    "name": "adamw", "lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "momentum": 0.0, "weight_decay": 0.0,
    "implementation": "foreach",
}  # fmt: skip


@dataclass(frozen=True)
class Workload:
    """One rank's share of an optimizer step. `build_model` is called under fake tensors and must not need values."""

    build_model: Callable[[], nn.Module]
    read_row: Callable[[int], Mapping[str, Tensor]]
    """One row of the data for a sequence length (tokens); only shapes and dtypes are used."""
    strategy: str = "single"
    dp_replicate: int = 1
    dp_shard: int = 1
    precision: PrecisionPolicy = FP32
    activation_checkpointing: str = "none"
    keep_every: int = 1
    """Of selective recomputation: the result of every n-th matrix product is kept."""
    blocks: str | None = None
    """Dotted path of the repeated blocks; None finds them."""
    optimizer: Mapping[str, Any] = field(default_factory=lambda: dict(ADAMW))
    """Keyword arguments of `pilotkit.train.optimizer.build_optimizer`."""
    reshard_after_forward: bool = True
    grad_accum_steps: int = 1
    sync_each_micro_batch: bool = False
    """Reduce gradients in every micro-batch, not in the last one only."""
    max_grad_norm: float | None = 1.0
    deterministic: bool = True
    device_type: str = "cpu"
    """`cpu` takes this machine's kernels; `cuda` and `rocm` those of an accelerator."""
    attention: str = "auto"
    """Of an accelerator: `fused`, `math` (plain operators, where torch was built without fused kernels or refuses the
    shape), or `auto`: fused, with plain beside it where that cannot be known."""
    num_eval_batches: int = 1
    compile: bool = False
    """Whether the model is compiled, as `train.compile` does it."""
    compile_scope: str = "model"
    """`model` as a whole, or its `blocks` each by itself."""
    fuses: bool = True
    """Of a compiled model: whether its element-wise operators are fused. False is torch's own backend
    `aot_eager_decomp_partition`, which a processor runs as it is traced."""

    @property
    def world_size(self) -> int:
        return self.dp_replicate * self.dp_shard
