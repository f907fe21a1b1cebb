"""Every name and implementation against torch's own class, by the weights after three steps."""

import pytest
import torch

from pilotkit.train.optimizer import build_optimizer

TORCH = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.2),
    "adam": lambda params: torch.optim.Adam(params, lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.2),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.7, weight_decay=0.2),
}


def three_steps(optimizer, param):
    for step in range(3):
        param.grad = torch.tensor([1.0, -2.0, 0.5]) * (step + 1)
        optimizer.step()
    return param.detach()


@pytest.mark.parametrize("implementation", ["foreach", "fused", "for_loop"])
@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_is_torchs_optimizer(name, implementation):
    mine, torchs = (torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0])) for _ in range(2))
    frozen = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
    built = build_optimizer(
        [mine, frozen],
        name=name,
        lr=0.1,
        betas=[0.8, 0.9],
        eps=1e-6,
        momentum=0.7,
        weight_decay=0.2,
        implementation=implementation,
    )
    assert built.param_groups[0]["params"] == [mine]
    switches = bool(built.param_groups[0]["foreach"]), bool(built.param_groups[0]["fused"])
    assert switches == (implementation == "foreach", implementation == "fused")
    torch.testing.assert_close(three_steps(built, mine), three_steps(TORCH[name]([torchs]), torchs))
