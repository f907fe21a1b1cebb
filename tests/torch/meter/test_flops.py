"""FLOPs of a transformer step against the usual formula, for each attention kernel that the CPU has."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from pilotkit.meter import count_executed_flops, count_step_flops, count_training_flops, mfu

VOCAB, LAYERS, HIDDEN, HEADS, BATCH, SEQ = 97, 2, 32, 4, 3, 24


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN, bias=False)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heads = (BATCH, SEQ, HEADS, HIDDEN // HEADS)
        q, k, v = (part.reshape(heads).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.out(mixed)
        return x + self.down(gelu(self.up(x)))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.head(self.blocks(self.embedding(tokens)))
        return cross_entropy(logits.flatten(0, 1), tokens.flatten())


@pytest.mark.parametrize("kernel", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], ids=["flash", "math"])
def test_decoder_step_is_6n_plus_12lhs_per_token(kernel: SDPBackend) -> None:
    model = Decoder()
    tokens = torch.randint(VOCAB, (BATCH, SEQ))
    with sdpa_kernel(kernel):
        counted = count_step_flops(lambda: model(tokens))
    # Every weight that is a factor of a product: 2 FLOPs in forward, 4 in backward. The embedding is a look-up.
    in_products = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embedding" not in name)
    assert in_products == LAYERS * 12 * HIDDEN**2 + HIDDEN * VOCAB
    assert counted == BATCH * SEQ * (6 * in_products + 12 * LAYERS * HIDDEN * SEQ)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_forward_alone_gives_the_flops_of_the_step() -> None:
    model = Decoder()
    tokens = torch.randint(VOCAB, (BATCH, SEQ))
    assert count_training_flops(lambda: model(tokens)) == count_step_flops(lambda: model(tokens))


@pytest.mark.parametrize("recomputed", [False, True], ids=["kept", "recomputed"])
def test_what_is_executed_counts_scores_and_blocks_again(recomputed: bool) -> None:
    model = Decoder()
    if recomputed:
        for block in model.blocks:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    tokens = torch.randint(VOCAB, (BATCH, SEQ))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        executed = count_executed_flops(lambda: model(tokens).backward())
    in_products = LAYERS * 12 * HIDDEN**2 + HIDDEN * VOCAB
    # Flash attention: two products in forward, five in backward, 2 * seq_len * hidden FLOPs a token each.
    per_token = 6 * in_products + 14 * LAYERS * HIDDEN * SEQ
    # A block again, without its last projection (4 of 12 hidden^2), whose result backward does not need.
    again = LAYERS * (2 * 8 * HIDDEN**2 + 4 * HIDDEN * SEQ)
    assert executed == BATCH * SEQ * (per_token + recomputed * again)


def test_frozen_weights_take_no_gradient_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    model[1].requires_grad_(False)
    product = 2 * 4 * 8 * 8
    # Forward of both, the gradient that passes through the frozen one, the gradient of the trained one.
    assert count_step_flops(lambda: model(torch.ones(4, 8)).sum()) == 4 * product


def test_grouped_query_attention_takes_the_work_of_its_query_heads() -> None:
    def forward() -> Tensor:
        q = torch.randn(1, 4, 8, 16, requires_grad=True)
        k, v = torch.randn(1, 2, 8, 16), torch.randn(1, 2, 8, 16)
        return scaled_dot_product_attention(q, k, v, enable_gqa=True).sum()

    # Two products of 2 * 4 heads * 8 * 8 * 16 in forward, and twice that in backward.
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert count_step_flops(forward) == 3 * 2 * (2 * 4 * 8 * 8 * 16)


def test_a_loss_that_cannot_be_trained_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^the loss does not require a gradient: nothing in the model can be trained$"
    ):
        count_step_flops(lambda: torch.ones(2, 2).matmul(torch.ones(2, 2)).sum())


def test_mfu() -> None:
    # 10,000 tokens/s of a 7e9-parameter model, 4.2e10 FLOPs a token, on a device of 989e12 FLOP/s.
    assert mfu(10_000, 4.2e10, 989e12) == pytest.approx(0.42467, abs=1e-5)


def test_mfu_without_a_peak_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^peak_flops must be above 0, not 0\.0$"):
        mfu(1.0, 1.0, 0.0)
