"""Running statistics on two ranks: one value everywhere, saved and continued to the last bit."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pilotkit.train import ranks
from pilotkit.train.buffers import MovingBuffers


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_statistics_are_the_same_on_every_rank_and_come_back(strategy, two_ranks):
    first, second = two_ranks[f"statistics_{strategy}"]
    assert first["statistics"] == second["statistics"]
    assert first["statistics"][0] != [0.0] * 8, "they have to move, or equality says nothing"
    for found in (first, second):
        assert found["restored"] == found["statistics"]
        assert found["eval_loss"][0] == found["eval_loss"][1] == first["eval_loss"][0]
        assert found["losses"][0] == found["losses"][1]
        assert found["at_end"][0] == found["at_end"][1]


def test_one_process_has_nothing_to_agree_about():
    model = torch.nn.BatchNorm1d(2)
    moving = MovingBuffers(model)
    model(torch.randn(4, 2))
    moved = model.running_mean.clone()
    moving.agree()
    assert torch.equal(model.running_mean, moved)


def test_a_traced_model_has_no_values_to_compare(monkeypatch):
    monkeypatch.setattr(ranks, "rank_and_world_size", lambda: (0, 2))
    with FakeTensorMode():
        model = torch.nn.BatchNorm1d(2)
        moving = MovingBuffers(model)
        model(torch.randn(4, 2))
        moving.agree()
