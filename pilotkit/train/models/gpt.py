"""A GPT-2 shaped decoder: learned positions, LayerNorm before each branch, GELU. Radford et al. 2019.

Built by the worker through `model.factory`, traced by `estimate`. Reads no configuration and loads no weights.
Shape suffixes: B micro_batch_size, T seq_len, C hidden_size, H num_heads, D hidden_size / num_heads.
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


def build(
    *,
    vocab_size: int,
    num_layers: int,
    num_heads: int,
    hidden_size: int,
    max_seq_len: int,
    dropout: float,
    tie_embeddings: bool,
    loss_chunks: int = 1,
) -> nn.Module:
    """A model with random weights. `model(input_ids, labels)` takes (B, T) int64 and gives `.loss` and `.logits`.

    With `loss_chunks` above 1 the loss is computed in so many pieces, and no logits are given beside it.
    Raises ConfigError when num_heads does not divide hidden_size.
    """
    check_divides("hidden_size", hidden_size, by_key="num_heads", by=num_heads)
    check_loss_chunks(loss_chunks)
    model = GPT(
        vocab_size=vocab_size,
        num_layers=num_layers,
        num_heads=num_heads,
        hidden_size=hidden_size,
        max_seq_len=max_seq_len,
        dropout=dropout,
        tie_embeddings=tie_embeddings,
        loss_chunks=loss_chunks,
    )
    init_weights(model, num_layers=num_layers, residual_suffixes=("attention.out", "mlp.down"))
    return model


class Attention(nn.Module):
    """Causal self-attention with one fused projection for queries, keys and values."""

    def __init__(self, *, hidden_size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.out = nn.Linear(hidden_size, hidden_size)

    def forward(self, x_btc: Tensor) -> Tensor:
        q, k, v = self.qkv(x_btc).chunk(3, dim=-1)
        q_bhtd, k_bhtd, v_bhtd = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in (q, k, v))
        dropout = self.dropout if self.training else 0.0
        y_bhtd = F.scaled_dot_product_attention(q_bhtd, k_bhtd, v_bhtd, is_causal=True, dropout_p=dropout)
        projected: Tensor = self.out(y_bhtd.transpose(1, 2).flatten(2))
        return projected


class MLP(nn.Module):
    """Two projections with GELU between; four times as wide inside."""

    def __init__(self, *, hidden_size: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden_size, 4 * hidden_size)
        self.down = nn.Linear(4 * hidden_size, hidden_size)

    def forward(self, x_btc: Tensor) -> Tensor:
        y_btc: Tensor = self.down(F.gelu(self.up(x_btc), approximate="tanh"))
        return y_btc


class Block(nn.Module):
    """Attention and MLP, each behind a LayerNorm and added to its input."""

    def __init__(self, *, hidden_size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden_size)
        self.attention = Attention(hidden_size=hidden_size, num_heads=num_heads, dropout=dropout)
        self.mlp_norm = nn.LayerNorm(hidden_size)
        self.mlp = MLP(hidden_size=hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_btc: Tensor) -> Tensor:
        x_btc = x_btc + self.dropout(self.attention(self.attention_norm(x_btc)))
        y_btc: Tensor = x_btc + self.dropout(self.mlp(self.mlp_norm(x_btc)))
        return y_btc


class GPT(nn.Module):
    """The decoder with its language-model head."""

    def __init__(
        self,
        *,
        vocab_size: int,
        num_layers: int,
        num_heads: int,
        hidden_size: int,
        max_seq_len: int,
        dropout: float,
        tie_embeddings: bool,
        loss_chunks: int,
    ) -> None:
        super().__init__()
        self.max_seq_len = max_seq_len
        self.loss_chunks = loss_chunks
        self.token_embedding = nn.Embedding(vocab_size, hidden_size)
        self.position_embedding = nn.Embedding(max_seq_len, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(hidden_size=hidden_size, num_heads=num_heads, dropout=dropout) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(hidden_size)
        self.lm_head = nn.Linear(hidden_size, vocab_size, bias=False)
        if tie_embeddings:
            self.lm_head.weight = self.token_embedding.weight

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> LanguageModelOutput:
        """`input_ids`, `labels`: (B, T) int64. Raises ConfigError when T is more than max_seq_len."""
        seq_len = input_ids.shape[1]
        check_seq_len(seq_len, max_seq_len=self.max_seq_len)
        positions = torch.arange(seq_len, device=input_ids.device)
        x_btc = self.dropout(self.token_embedding(input_ids) + self.position_embedding(positions))
        for block in self.blocks:
            x_btc = block(x_btc)
        return output_of(self.lm_head, self.norm(x_btc), labels, loss_chunks=self.loss_chunks)
