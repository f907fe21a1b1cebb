"""Updates that bfloat16 rounds away: 1.0 and 6e-4, computed by hand, and what must not be counted."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pilotkit.meter import UpdateWatch


def _train(dtype: torch.dtype, *, steps: int = 100, lr: float = 6e-4) -> tuple[nn.Module, UpdateWatch]:
    model = nn.Linear(8, 1, bias=False).to(dtype)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with UpdateWatch(model, optimizer) as watch:
        for _ in range(steps):
            model(torch.ones(1, 8, dtype=dtype)).sum().backward()  # the gradient is 1 everywhere
            optimizer.step()
            optimizer.zero_grad()
    return model, watch


def test_bf16_stands_still_and_fp32_moves() -> None:
    model, watch = _train(torch.bfloat16)
    assert torch.equal(model.weight, torch.ones_like(model.weight))
    assert (watch.lost_share, watch.stuck()) == (1.0, ["weight"])
    model, watch = _train(torch.float32)
    assert float(model.weight.detach()[0, 0]) == pytest.approx(0.94, abs=1e-4)
    assert (watch.lost_share, watch.stuck()) == (0.0, [])


def test_rows_without_a_gradient_have_nothing_to_lose() -> None:
    model = nn.Embedding(10, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with UpdateWatch(model, optimizer) as watch:
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
    assert watch.by_parameter["weight"].looked == 2 * 4
    assert watch.lost_share == 0.0


def test_a_sample_of_a_large_parameter() -> None:
    model = nn.Linear(1024, 1024, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with UpdateWatch(model, optimizer) as watch:
        model(torch.ones(1, 1024)).sum().backward()
        optimizer.step()
    assert watch.by_parameter["weight"].looked == 65536
