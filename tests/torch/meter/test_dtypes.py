"""Dtypes that a step really used: under autocast, with a module that leaves it, and with a buffer of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pilotkit.meter import DtypeWatch


class Leak(nn.Module):
    """Steps out of autocast for one product."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.inner(x.float())


def _watch(model: nn.Module) -> DtypeWatch:
    with DtypeWatch(model) as watch:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.ones(4, 8)).sum()
        loss.backward()
    return watch


def test_autocast_computes_in_bf16_and_keeps_fp32() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    table = _watch(model).table
    assert table.parameters == {"float32": 8 * 8 + 8 + 8 + 8}
    assert table.gradients == table.parameters
    assert table.buffers == {"float32": 16, "int64": 1}
    assert table.modules == {"bfloat16": ["0"]}
    # Forward, and in backward the gradient of the weight: the input needs none.
    assert table.products == {"bfloat16": 2}
    assert table.output == ["bfloat16"]
    assert table.leaks("bfloat16") == []


def test_a_leak_is_named() -> None:
    table = _watch(nn.Sequential(nn.Linear(8, 8), Leak())).table
    assert table.leaks("bfloat16") == ["1.inner"]
    assert table.modules["float32"] == ["1.inner"]


def test_a_module_that_raises_leaves_no_place_behind() -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    model = nn.Sequential(Raises(), nn.Linear(8, 8))
    with DtypeWatch(model) as watch:
        try:
            model(torch.ones(1, 8))
        except ValueError:
            model[1](torch.ones(1, 8))
    assert watch.table.modules == {"float32": ["1"]}
