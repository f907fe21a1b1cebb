"""Learning rates by hand."""

import pytest
import torch

from pilotkit.train.scheduler import build_scheduler, lr_ratio


@pytest.mark.parametrize(
    ("name", "step", "expected"),
    [
        ("constant", 0, 0.25),
        ("constant", 3, 1.0),
        ("constant", 4, 1.0),
        ("constant", 999, 1.0),
        ("linear", 4, 1.0),
        ("linear", 9, 0.6),  # half of 10 steps: 0.2 + 0.8 / 2
        ("linear", 14, 0.2),
        ("linear", 999, 0.2),
        ("cosine", 0, 0.25),
        ("cosine", 4, 1.0),
        ("cosine", 9, 0.6),
        ("cosine", 14, 0.2),
        ("cosine", 999, 0.2),
    ],
)
def test_ratio(name, step, expected):
    found = lr_ratio(step, name=name, lr_warmup_steps=4, num_steps=14, min_lr_ratio=0.2)
    assert found == pytest.approx(expected)


def test_run_shorter_than_its_warm_up_only_warms_up():
    ratios = [lr_ratio(step, name="cosine", lr_warmup_steps=4, num_steps=2, min_lr_ratio=0.0) for step in range(4)]
    assert ratios == [0.25, 0.5, 0.75, 1.0]


def test_scheduler_moves_the_optimizer_and_keeps_only_a_count():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = build_scheduler(optimizer, name="linear", lr_warmup_steps=2, num_steps=4, min_lr_ratio=0.0)
    found = []
    for _ in range(5):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert found == [1.0, 2.0, 2.0, 1.0, 0.0]
    assert scheduler.state_dict()["lr_lambdas"][0] in (None, {})
