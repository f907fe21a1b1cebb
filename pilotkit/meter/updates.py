"""How many parameters an optimizer step left exactly where they were although they had a gradient.

In bfloat16 numbers just below 1 are 2^-8 apart: an update of less than half of that is rounded away, again and again.
Called for the steps of a comparison of precisions; usable on any optimizer. Looks at a sample, so it needs little
memory; changes nothing.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

SAMPLE = 65536
"""At most this many elements of each parameter are looked at, evenly spaced."""


@dataclass
class Counted:
    """Elements of one parameter, over all steps: `looked` had a gradient, `lost` of these did not move."""

    looked: int = 0
    lost: int = 0

    @property
    def share(self) -> float:
        return self.lost / self.looked if self.looked else 0.0


class UpdateWatch:
    """Context manager around optimizer steps. `by_parameter` counts by name; `lost_share` is over all of them (0 to 1).

    A step that a loss scaler skips is no update and is not counted. An element without a gradient (a row of an
    embedding that the batch did not use) has no update to lose.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.by_parameter: dict[str, Counted] = {}
        self._named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        self._optimizer = optimizer
        self._before: dict[str, Tensor] = {}
        self._entered = ExitStack()

    @property
    def lost_share(self) -> float:
        """Lost over looked at, all parameters and steps together; 0 when nothing was looked at."""
        looked = sum(counted.looked for counted in self.by_parameter.values())
        return sum(counted.lost for counted in self.by_parameter.values()) / looked if looked else 0.0

    def stuck(self, *, share: float = 0.5) -> list[str]:
        """Names of the parameters that lost more than `share` of their updates."""
        return [name for name, counted in self.by_parameter.items() if counted.share > share]

    def __enter__(self) -> UpdateWatch:
        self._entered.callback(self._optimizer.register_step_pre_hook(self._remember).remove)
        self._entered.callback(self._optimizer.register_step_post_hook(self._compare).remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._before.clear()
        self._entered.close()

    def _remember(self, *_: Any) -> None:
        self._before = {name: _sample(parameter).clone() for name, parameter in self._named}

    def _compare(self, *_: Any) -> None:
        for name, parameter in self._named:
            if parameter.grad is None:
                continue
            has_gradient = _sample(parameter.grad) != 0
            unmoved = _sample(parameter) == self._before[name]
            counted = self.by_parameter.setdefault(name, Counted())
            counted.looked += int(has_gradient.sum())
            counted.lost += int((has_gradient & unmoved).sum())
        self._before.clear()


def _sample(tensor: Tensor) -> Tensor:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    flat = local.detach().reshape(-1)
    return flat[:: max(-(-flat.numel() // SAMPLE), 1)]
