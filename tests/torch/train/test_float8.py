"""Float8 layers by the real torchao, emulated on the processor: same casts, products in float32."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from pilotkit.errors import ConfigError
from pilotkit.train import activation_checkpointing, float8


@pytest.mark.parametrize("recipe", float8.RECIPES)
def test_only_the_layers_of_the_blocks_are_converted_and_their_values_are_cast(
    recipe: str, workload: ModuleType
) -> None:
    tokens = torch.arange(32).view(2, 16) % 32
    torch.manual_seed(0)
    model = workload.build_model()
    before = {name: id(parameter) for name, parameter in model.named_parameters()}
    expected = model(input_ids=tokens, labels=tokens).loss
    assert float8.convert(model, recipe=recipe, blocks=model.blocks, emulate=True) == 2 * 4
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == before
    assert type(model.lm_head) is torch.nn.Linear
    activation_checkpointing.apply(model, mode="full", blocks=model.blocks)
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    # e4m3 has 4 bits of precision: something changes, and not much.
    assert 0 < abs((loss - expected).item()) < 0.01
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


def test_what_cannot_be_converted_is_refused(workload: ModuleType) -> None:
    with pytest.raises(ConfigError, match=r"Linear has no nn.ModuleList of equal blocks; name one by model.blocks"):
        float8.convert(torch.nn.Linear(16, 16), recipe="tensorwise", blocks=None, emulate=True)
    odd = torch.nn.ModuleList(torch.nn.Linear(16, 15) for _ in range(2))
    with pytest.raises(ConfigError, match="no linear layer of its blocks has sizes that are multiples of 16"):
        float8.convert(odd, recipe="tensorwise", blocks=odd, emulate=True)


def test_without_torchao_it_is_refused_with_the_extra(workload: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    model = workload.build_model()
    with pytest.raises(ConfigError, match=r"pip install pilotkit\[fp8\] \(importing torchao failed"):
        float8.convert(model, recipe="tensorwise", blocks=model.blocks, emulate=False)
