"""Number formats of one run: storage, computation, gradient reduction. Names come in as text, as in `conf/precision`.

Called by the worker once a process and by the trainer in every forward. Never chooses a format by itself.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class PrecisionPolicy:
    """Names of dtypes: `float32`, `bfloat16` or `float16`."""

    param_dtype: str
    """Parameters and optimizer state."""
    compute_dtype: str
    """Matrix products of forward and backward."""
    reduce_dtype: str
    """Gradient reduction of sharded strategies."""
    allow_tf32: bool = False
    """Whether float32 matrix products and convolutions may use TF32."""
    grad_scaler: bool = False
    """Whether the loss is scaled dynamically."""
    float8: str = "none"
    """torchao's recipe for the linear layers of the blocks; see `train.float8`."""
    float8_emulate: bool = False
    """Whether those products are only emulated."""

    @property
    def is_mixed(self) -> bool:
        """Whether computation differs from storage."""
        return self.compute_dtype != self.param_dtype

    def apply_to_backend(self, device: torch.device) -> None:
        """Set both TF32 switches of this process, on and off alike: cuDNN's own default is on.

        Only the older pair of switches is used, here and everywhere: torch raises once both kinds were set, and the
        older pair can be read through either. What somebody set by the newer ones is taken back, as convolutions
        inherit it. On a device without TF32 they change nothing.
        """
        del device  # the switches are those of the process; the argument keeps the call alike for other backends
        backends: Any = torch.backends
        mkldnn = (getattr(backends.mkldnn, name, None) for name in ("matmul", "conv", "rnn"))
        for backend in (backends, backends.cudnn, backends.mkldnn, *mkldnn):
            # Read first: torch before 2.9 has no such switch, and would take any name.
            if getattr(backend, "fp32_precision", "none") != "none":
                backend.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")  # the processor's products too, which have bfloat16 for "medium"
        torch.backends.cuda.matmul.allow_tf32 = self.allow_tf32
        torch.backends.cudnn.allow_tf32 = self.allow_tf32

    def cast(self, model: nn.Module) -> nn.Module:
        """Store every floating parameter and buffer in `param_dtype`; returns the same module."""
        return model.to(DTYPES[self.param_dtype])

    def autocast(self, device: torch.device, *, sharded: bool) -> AbstractContextManager[object]:
        """The context of one forward. Sharded strategies cast by FSDP's own policy, so theirs does nothing."""
        if sharded or not self.is_mixed:
            return nullcontext()
        return torch.autocast(device.type, dtype=DTYPES[self.compute_dtype])

    def build_scaler(self, device: torch.device) -> torch.amp.GradScaler | None:
        """A new dynamic loss scale (65536 to begin with), or None when this precision has none."""
        return torch.amp.GradScaler(device.type) if self.grad_scaler else None
