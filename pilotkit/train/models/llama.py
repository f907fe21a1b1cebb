"""A Llama 3 shaped decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU. arXiv:2407.21783.

Built by the worker through `model.factory`, traced by `estimate`. Reads no configuration and loads no weights.
Shape suffixes: B micro_batch_size, T seq_len, C hidden_size, H num_heads, K num_kv_heads, D hidden_size / num_heads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the field's usual name
from torch import Tensor, nn

from pilotkit.train.models.language import (
    LanguageModelOutput,
    check_divides,
    check_loss_chunks,
    check_seq_len,
    init_weights,
    output_of,
)

NORM_EPS = 1e-5


def build(
    *,
    vocab_size: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    hidden_size: int,
    ffn_size: int,
    max_seq_len: int,
    rope_theta: float,
    loss_chunks: int = 1,
) -> nn.Module:
    """A model with random weights. `model(input_ids, labels)` takes (B, T) int64 and gives `.loss` and `.logits`.

    With `loss_chunks` above 1 the loss is computed in so many pieces, and no logits are given beside it.
    Raises ConfigError when num_heads does not divide hidden_size, num_kv_heads not num_heads, or D is odd.
    """
    check_divides("hidden_size", hidden_size, by_key="num_heads", by=2 * num_heads)
    check_divides("num_heads", num_heads, by_key="num_kv_heads", by=num_kv_heads)
    check_loss_chunks(loss_chunks)
    model = Llama(
        vocab_size=vocab_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        hidden_size=hidden_size,
        ffn_size=ffn_size,
        max_seq_len=max_seq_len,
        rope_theta=rope_theta,
        loss_chunks=loss_chunks,
    )
    init_weights(model, num_layers=num_layers, residual_suffixes=("attention.out", "mlp.down"))
    return model


def rotary_angles(seq_len: int, *, head_size: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of `t * theta^(-2i/D)`, each (T, D) with both halves alike. arXiv:2104.09864, equation 15.

    Computed in every forward: a buffer would be lost on the meta device and cast with the weights.
    """
    exponents = torch.arange(0, head_size, 2, device=device, dtype=torch.float32) / head_size
    positions = torch.arange(seq_len, device=device, dtype=torch.float32)
    angles = torch.outer(positions, theta**-exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + D/2]) of (B, H, T, D) by its angle; keeps the dtype of `x`."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


class Attention(nn.Module):
    """Causal attention in which num_heads / num_kv_heads query heads share one key and value head."""

    def __init__(self, *, hidden_size: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        self.head_size = hidden_size // num_heads
        self.q = nn.Linear(hidden_size, num_heads * self.head_size, bias=False)
        self.k = nn.Linear(hidden_size, num_kv_heads * self.head_size, bias=False)
        self.v = nn.Linear(hidden_size, num_kv_heads * self.head_size, bias=False)
        self.out = nn.Linear(num_heads * self.head_size, hidden_size, bias=False)

    def forward(self, x_btc: Tensor, cos_td: Tensor, sin_td: Tensor) -> Tensor:
        q_bhtd = self._heads(self.q(x_btc))
        k_bktd = self._heads(self.k(x_btc))
        v_bktd = self._heads(self.v(x_btc))
        q_bhtd, k_bktd = rotate(q_bhtd, cos_td, sin_td), rotate(k_bktd, cos_td, sin_td)
        y_bhtd = F.scaled_dot_product_attention(q_bhtd, k_bktd, v_bktd, is_causal=True, enable_gqa=True)
        projected: Tensor = self.out(y_bhtd.transpose(1, 2).flatten(2))
        return projected

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_size).transpose(1, 2)


class MLP(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))`. arXiv:2002.05202."""

    def __init__(self, *, hidden_size: int, ffn_size: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden_size, ffn_size, bias=False)
        self.up = nn.Linear(hidden_size, ffn_size, bias=False)
        self.down = nn.Linear(ffn_size, hidden_size, bias=False)

    def forward(self, x_btc: Tensor) -> Tensor:
        y_btc: Tensor = self.down(F.silu(self.gate(x_btc)) * self.up(x_btc))
        return y_btc


class Block(nn.Module):
    """Attention and MLP, each behind an RMSNorm and added to its input."""

    def __init__(self, *, hidden_size: int, num_heads: int, num_kv_heads: int, ffn_size: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(hidden_size, eps=NORM_EPS)
        self.attention = Attention(hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=num_kv_heads)
        self.mlp_norm = nn.RMSNorm(hidden_size, eps=NORM_EPS)
        self.mlp = MLP(hidden_size=hidden_size, ffn_size=ffn_size)

    def forward(self, x_btc: Tensor, cos_td: Tensor, sin_td: Tensor) -> Tensor:
        x_btc = x_btc + self.attention(self.attention_norm(x_btc), cos_td, sin_td)
        y_btc: Tensor = x_btc + self.mlp(self.mlp_norm(x_btc))
        return y_btc


class Llama(nn.Module):
    """The decoder with its own (untied) language-model head."""

    def __init__(
        self,
        *,
        vocab_size: int,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int,
        hidden_size: int,
        ffn_size: int,
        max_seq_len: int,
        rope_theta: float,
        loss_chunks: int,
    ) -> None:
        super().__init__()
        self.max_seq_len = max_seq_len
        self.loss_chunks = loss_chunks
        self.head_size = hidden_size // num_heads
        self.rope_theta = rope_theta
        self.token_embedding = nn.Embedding(vocab_size, hidden_size)
        self.blocks = nn.ModuleList(
            Block(hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=num_kv_heads, ffn_size=ffn_size)
            for _ in range(num_layers)
        )
        self.norm = nn.RMSNorm(hidden_size, eps=NORM_EPS)
        self.lm_head = nn.Linear(hidden_size, vocab_size, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> LanguageModelOutput:
        """`input_ids`, `labels`: (B, T) int64. Raises ConfigError when T is more than max_seq_len."""
        seq_len = input_ids.shape[1]
        check_seq_len(seq_len, max_seq_len=self.max_seq_len)
        cos_td, sin_td = rotary_angles(
            seq_len, head_size=self.head_size, theta=self.rope_theta, device=input_ids.device
        )
        x_btc = self.token_embedding(input_ids)
        for block in self.blocks:
            x_btc = block(x_btc, cos_td, sin_td)
        return output_of(self.lm_head, self.norm(x_btc), labels, loss_chunks=self.loss_chunks)
