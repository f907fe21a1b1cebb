"""The module that made the first NaN or infinity, planted in forward and in backward."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pilotkit.meter import FiniteWatch


class Spoil(nn.Module):
    """Adds what it is told to its input: nothing changes while that is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.value = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return x + self.value


class BackwardInf(nn.Module):
    """sqrt at zero: a finite output whose gradient is infinite."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 0.0).sqrt()


def _run(model: nn.Module, steps: int, before: object = None) -> list[tuple[int, str, str, str]]:
    with FiniteWatch(model) as watch:
        for step in range(1, steps + 1):
            watch.begin_step(step)
            if callable(before):
                before(step)
            model(torch.ones(2, 4)).sum().backward()
    return [(event.step, event.module, event.where, event.kind) for event in watch.events]


def test_first_module_of_the_forward() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), Spoil()), nn.Linear(4, 4))

    def spoil(step: int) -> None:
        model[1][1].value = float("nan") if step == 3 else 0.0

    assert _run(model, 4, spoil) == [(3, "1.1", "output", "nan")]


def test_infinity_of_the_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 4), BackwardInf())
    assert _run(model, 1) == [(1, "0", "gradient of the output", "nan")]


def test_sound_steps_leave_nothing_and_hooks_go() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Spoil())
    assert _run(model, 2) == []
    assert not model[0]._forward_hooks
