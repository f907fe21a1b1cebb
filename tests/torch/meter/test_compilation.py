"""Recompilations of a shape that changes, counted and named; the limit that torch falls back at."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

from pilotkit.meter import CompileWatch


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh()


def test_changing_shapes_are_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="torch._dynamo")
    torch._dynamo.reset()
    model = torch.compile(Layer(), backend="eager", dynamic=False)
    with CompileWatch() as first:
        model(torch.ones(2, 4))
        model(torch.ones(2, 4))
    assert [(found.function, found.reason) for found in first.compilations] == [("forward", "")]
    assert first.seconds > 0
    with CompileWatch() as steady:
        model(torch.ones(2, 4))
    assert steady.compilations == []
    with CompileWatch() as changing:
        for rows in range(3, 13):
            model(torch.ones(rows, 4))
    assert len(changing.recompilations) == torch._dynamo.config.recompile_limit - 1
    assert "size mismatch at index 0. expected 2, actual 3" in changing.recompilations[0].reason
    assert (first.at_limit(), changing.at_limit()) == ([], ["forward"])
    torch._dynamo.reset()
