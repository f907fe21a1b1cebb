"""Recomputation: how often a block runs, what is kept, and that nothing else changes."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from pilotkit.errors import ConfigError
from pilotkit.train.activation_checkpointing import apply


def loss_grads_and_kept_bytes(workload, mode):
    """Loss, gradients by name, and the bytes that autograd keeps for backward."""
    torch.manual_seed(0)
    model = workload.build_model(dropout=0.1)
    wrapped = apply(model, mode=mode, blocks=model.blocks)
    assert wrapped == (0 if mode == "none" else 2)
    tokens = torch.arange(32).view(2, 16) % 32
    kept = []

    def pack(tensor):
        kept.append(tensor.numel() * tensor.element_size())
        return tensor

    torch.manual_seed(1)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(input_ids=tokens, labels=tokens).loss
    kept_in_forward = sum(kept)
    loss.backward()
    return loss.item(), {name: param.grad for name, param in model.named_parameters()}, kept_in_forward


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_gradients_are_the_same_and_less_is_kept(mode, workload):
    plain_loss, plain_grads, plain_kept = loss_grads_and_kept_bytes(workload, "none")
    loss, grads, kept = loss_grads_and_kept_bytes(workload, mode)
    assert loss == plain_loss
    assert grads.keys() == plain_grads.keys(), "parameters keep their names"
    for name, grad in grads.items():
        torch.testing.assert_close(grad, plain_grads[name], msg=name)
    assert kept < plain_kept


@pytest.mark.parametrize(
    ("mode", "keep_every", "shares"),
    [("none", 1, 12), ("selective", 1, 12), ("selective", 2, 12 + 1), ("full", 1, 12 + 8)],
)
def test_matrix_products_that_are_not_kept_are_recomputed(mode, keep_every, shares, workload):
    """Of the four products of a block (3, 1, 4 and 4 times 16^2 weights) every second one is kept, or all, or none."""
    model = workload.build_model()
    apply(model, mode=mode, blocks=model.blocks, keep_every=keep_every)
    tokens = torch.zeros(1, 16, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, labels=tokens).loss.backward()
    # Only forward has products with a bias: in each of 2 blocks 16 tokens through 12 * 16^2 weights, 2 FLOP each. The
    # last projection of a block (4 of the 12) is not recomputed, as nothing in backward needs its result.
    assert counter.get_flop_counts()["Global"][torch.ops.aten.addmm] == 2 * 2 * 16 * shares * 16**2


def test_names_and_types_stay(workload):
    model = workload.build_model()
    expected = list(model.state_dict()), [type(module) for module in model.modules()]
    apply(model, mode="full", blocks=model.blocks)
    assert (list(model.state_dict()), [type(module) for module in model.modules()]) == expected


def test_nothing_to_wrap_is_an_error():
    with pytest.raises(ConfigError) as caught:
        apply(torch.nn.Linear(2, 2), mode="full", blocks=None)
    assert str(caught.value) == (
        "1 problem in the configuration; nothing was started.\n1. activation_checkpointing.mode=full\n"
        "    allowed: none for this model\n"
        "    to mend: Linear has no nn.ModuleList of equal blocks; name one by model.blocks, or use none"
    )


class UsedTwice(torch.nn.Module):
    """One block for all layers, as ALBERT has it."""

    def __init__(self):
        super().__init__()
        block = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8))
        self.blocks = torch.nn.ModuleList([block])

    def forward(self, x):
        for _ in range(2):
            x = x + self.blocks[0](x)
        return x.float().square().mean()


@pytest.mark.parametrize(("mode", "cached"), [("full", True), ("selective", False)])
def test_a_block_that_is_used_twice_in_mixed_precision(mode, cached):
    """Autocast keeps a weight that it has cast, so the second use of a block runs fewer operators than the first.

    Selective recomputation casts each time, and so adds the two uses' gradients in float32: equal to the last bit to
    a run that keeps no cast weight either.
    """
    gradients = {}
    for each in ("none", mode):
        torch.manual_seed(0)
        model = UsedTwice()
        apply(model, mode=each, blocks=model.blocks)
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cached):
            loss = model(torch.randn(4, 8, generator=torch.Generator().manual_seed(1)))
        loss.backward()
        gradients[each] = [param.grad for param in model.parameters()]
    for one, other in zip(gradients[mode], gradients["none"], strict=True):
        assert torch.equal(one, other)
    assert torch.is_autocast_cache_enabled()


def test_the_memory_of_casts_is_left_as_it_was():
    model = UsedTwice()
    apply(model, mode="selective", blocks=model.blocks)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(4, 8))
        assert torch.is_autocast_cache_enabled()
