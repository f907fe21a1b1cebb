"""Gradients that `numerics` compares: of all micro-batches, without the loss scale, zeros where none was reached."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from pilotkit.worker.curves import _Gradients


def test_a_parameter_that_no_or_not_every_micro_batch_reached_is_handed_on() -> None:
    model = torch.nn.ModuleDict({name: torch.nn.Linear(1, 1, bias=False) for name in ("both", "first", "never")})
    trainer: Any = SimpleNamespace(model=model, scaler=SimpleNamespace(get_scale=lambda: 4.0))
    found: dict[str, float] = {}
    listener = _Gradients(trainer, lambda name, gradient: found.update({name: gradient.item()}))
    x = torch.ones(1, 1)
    for experts in (("both", "first"), ("both",)):
        with listener.section("forward"):
            loss = sum(model[name](x).sum() for name in experts) * 4.0
        with listener.section("backward"):
            loss.backward()
    assert found == {}
    with listener.section("optimizer"):
        assert found == {"both.weight": 2.0, "first.weight": 1.0, "never.weight": 0.0}
