"""One step: what sections see, what is returned, what stops it, and that evaluation leaves no trace."""

import random
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from pilotkit.train.trainer import NonFiniteLoss


class Journal:
    def __init__(self):
        self.events = []

    @contextmanager
    def section(self, name):
        self.events.append(name)
        yield
        self.events.append(f"/{name}")


def test_sections_are_told_in_order(workload):
    journal = Journal()
    workload.build_trainer(grad_accum_steps=2).train_step(journal)
    micro = ["data_wait", "/data_wait", "forward", "/forward", "backward", "/backward"]
    assert journal.events == [*micro, *micro, "optimizer", "/optimizer"]


def test_a_step_is_torchs_own_step(workload):
    """Loss, clipped norm and weights against the plain loop, with the same rows in one batch."""
    trainer = workload.build_trainer(grad_accum_steps=2)
    torch.manual_seed(0)
    model = workload.build_model()
    model.load_state_dict(trainer.model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2 / 3, betas=(0.9, 0.95), weight_decay=0.1)
    result = trainer.train_step()
    tokens = torch.stack([(torch.arange(16) + row) % 32 for row in result.row_ids])
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    norm = torch.cat([param.grad.flatten() for param in model.parameters()]).norm()
    for param in model.parameters():
        param.grad.mul_(min(1.0, 1.0 / float(norm)))
    optimizer.step()
    assert result.loss == pytest.approx(loss.item(), abs=1e-6)
    assert result.grad_norm == pytest.approx(float(norm), rel=1e-5)
    assert (result.step, result.num_tokens, result.lr, result.skipped) == (1, 64, pytest.approx(1e-2 / 3), False)
    assert (trainer.step, trainer.tokens_seen, trainer.train_rows.position) == (1, 64, 4)
    for mine, torchs in zip(trainer.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, torchs, rtol=1e-5, atol=1e-6)


def test_no_clipping_gives_no_norm(workload):
    trainer = workload.build_trainer()
    trainer._max_grad_norm = None
    assert trainer.train_step().grad_norm is None


def test_evaluation_is_repeatable_and_leaves_no_trace(workload):
    trainer = workload.build_trainer(dropout=0.5)
    twin = workload.build_trainer(dropout=0.5)
    trainer.model.blocks[0].eval()  # a part that the user keeps frozen
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    first, second = trainer.evaluate(3), trainer.evaluate(3)
    assert first == second
    assert states[0] == random.getstate()
    assert states[1] == np.random.get_state()[1].tolist()
    assert torch.equal(states[2], torch.get_rng_state())
    assert trainer.train_rows.position == 0
    assert trainer.model.training
    assert trainer.model.blocks[1].training
    assert not trainer.model.blocks[0].training
    torch.manual_seed(1)
    after_evaluation = trainer.train_step().loss
    torch.manual_seed(1)
    assert after_evaluation == twin.train_step().loss


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_loss_that_is_not_finite_stops(value, workload):
    model = workload.build_model()
    trainer = workload.build_trainer(model=model)
    model.register_forward_hook(lambda module, args, output: output._replace(loss=output.loss * value))
    with pytest.raises(NonFiniteLoss) as caught:
        trainer.train_step()
    assert str(caught.value) == f"step 1: the loss is {value} (first on rank 0); every rank stops here"


def test_gradient_that_is_not_finite_stops_though_the_loss_is(workload):
    trainer = workload.build_trainer()
    trainer.model.norm.bias.register_hook(lambda grad: grad * float("inf"))
    with pytest.raises(NonFiniteLoss, match=r"^step 1: the gradient norm is (inf|nan) \(first on rank 0\)"):
        trainer.train_step()


def test_scaler_skips_an_overflow_but_not_for_ever(workload):
    model = workload.build_model()
    trainer = workload.build_trainer(model=model, precision=workload.FP16_MIXED)
    weight = model.norm.weight.detach().clone()
    model.register_forward_hook(lambda module, args, output: output._replace(loss=output.loss * float("inf")))
    steps = [trainer.train_step() for _ in range(16)]  # 65536 = 2^16 -> 1
    assert all(result.skipped for result in steps)
    assert len({result.lr for result in steps}) == 1
    assert torch.equal(weight, model.norm.weight)
    assert (trainer.scaler.get_scale(), trainer.num_skipped_steps) == (1.0, 16)
    with pytest.raises(NonFiniteLoss, match=r"^step 17: the loss is inf \(first on rank 0\); every rank stops here$"):
        trainer.train_step()
