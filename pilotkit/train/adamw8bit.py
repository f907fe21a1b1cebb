"""AdamW whose moments are kept in 8 bits, by torchao. Needs the `fp8` extra, imported when it is called.

Called by `optimizer`. A moment of at least 4,096 elements that blocks of 256 divide is one byte an element and a scale
a block (arXiv:2110.02861); a smaller one stays as it is. Never becomes another optimizer: what cannot be had is
refused.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from pilotkit.errors import ConfigError, Problem

NAME = "adamw8bit"
IMPLEMENTATION = "compiled"
BLOCK_SIZE = 256


def build(params: Iterable[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    """torchao's AdamW8bit with torch's own arguments. Raises ConfigError without torchao."""
    optimizer: torch.optim.Optimizer = _optimizer_class()(params, block_size=BLOCK_SIZE, **options)
    return optimizer


def check_strategy(strategy: str) -> None:
    """Raises ConfigError for a sharded one. Which moments have 8 bits depends on the size of a shard, and a scale
    belongs to 256 elements of one: the state could not be put together again at another world size."""
    if strategy in ("fsdp", "hsdp"):
        fix = "take ddp, or optimizer=adamw, whose state is sharded"
        raise ConfigError([Problem("parallelism.strategy", strategy, f"single or ddp with optimizer={NAME}", fix)])


@functools.cache
def _optimizer_class() -> Any:
    try:
        from torchao.optim import AdamW8bit
        from torchao.optim.subclass_8bit import OptimState8bit
    except ImportError as error:
        fix = (
            f"pip install pilotkit[fp8] (importing torchao failed: {error}); it is never replaced, as another one "
            "has another state"
        )
        raise ConfigError([Problem("optimizer.name", NAME, "adamw, adam, sgd", fix)]) from error
    for signed in (True, False):  # its table of values is computed once a process, and a trace has no values
        OptimState8bit.zeros((BLOCK_SIZE,), signed=signed)

    class PlainRate(AdamW8bit):  # type: ignore[misc]  # torchao has no types
        """The learning rate stays a number between steps, as schedulers and checkpoints know it.

        On a processor the update is not compiled: the memory of compiled code is not seen there, and a rehearsal need
        not be fast.
        """

        def add_param_group(self, param_group: dict[str, Any]) -> None:
            lr = param_group.get("lr", self.defaults["lr"])
            super().add_param_group(param_group)
            self.param_groups[-1]["lr"] = lr

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            rates = [group["lr"] for group in self.param_groups]
            on_cpu = self.param_groups[0]["params"][0].device.type == "cpu"
            try:
                for group, lr in zip(self.param_groups, rates, strict=True):
                    group["lr"] = torch.tensor(lr, dtype=torch.float32)
                with torch.compiler.set_stance("force_eager") if on_cpu else nullcontext():
                    return super().step(closure)
            finally:
                for group, lr in zip(self.param_groups, rates, strict=True):
                    group["lr"] = lr

    return PlainRate
