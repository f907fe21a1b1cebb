"""A GPT-2 shaped decoder written for the test of the export: nothing of pilotkit, only torch, and another code."""

import types

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width)})

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.attention["qkv"](self.attention_norm(x)).view(batch, length, 3, 2, width // 2)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) / (width // 2) ** 0.5
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        y = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        x = x + self.attention["out"](y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp["down"](functional.gelu(self.mlp["up"](self.mlp_norm(x)), approximate="tanh"))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.token_embedding, self.position_embedding = nn.Embedding(32, 16), nn.Embedding(16, 16)
        self.blocks = nn.ModuleList([Block(16), Block(16)])
        self.norm, self.lm_head = nn.LayerNorm(16), nn.Linear(16, 32, bias=False)

    def forward(self, input_ids, labels):
        x = self.token_embedding(input_ids) + self.position_embedding.weight[: input_ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.norm(x))[:, :-1]
        return types.SimpleNamespace(loss=functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten()))


def build():
    return Decoder()
