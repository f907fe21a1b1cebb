"""The module that made the first NaN or infinity, planted in forward and in backward."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
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


@dataclass
class Output:
    hidden: list[Tensor]
    name: str = "output"


@dataclass(slots=True)
class Slots:
    inner: SimpleNamespace

    @classmethod
    def in_a_circle(cls, model: nn.Module, tensor: Tensor) -> Slots:
        made = cls(SimpleNamespace(model=model, loss=tensor))
        made.inner.outer = made
        return made


class Wrapped(nn.Module):
    """What a model returns that is no tensor: the value is made here, in no module inside it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.linear = kind, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        bad = self.linear(x) * float("nan")
        if self.kind == "complex":
            return torch.view_as_complex(bad.view(-1, 2))
        kinds: dict[str, Any] = {
            "tuple": (x, [bad]),
            "mapping": UserDict(loss=bad),
            "dataclass": Output([bad]),
            "namespace": SimpleNamespace(loss=bad),
            "slots": Slots.in_a_circle(self, bad),
        }
        return kinds[self.kind]


@pytest.mark.parametrize("kind", ["tuple", "mapping", "dataclass", "namespace", "slots", "complex"])
def test_whatever_a_module_returns(kind: str) -> None:
    model = Wrapped(kind)
    with FiniteWatch(model) as watch:
        watch.begin_step(1)
        model(torch.ones(2, 4))
    assert [(event.module, event.kind) for event in watch.events] == [("Wrapped", "nan")]


def test_infinity_of_the_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 4), BackwardInf())
    assert _run(model, 1) == [(1, "0", "gradient of the output", "nan")]


def test_sound_steps_leave_nothing_and_hooks_go() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Spoil())
    assert _run(model, 2) == []
    assert not model[0]._forward_hooks
