"""A tiny training run for the tests, alone or on the ranks that `rank_scenarios` starts.

Imported through the `workload` fixture, and by the benchmark of checkpoints.
"""

from __future__ import annotations

from typing import Any

import torch

from pilotkit.train import activation_checkpointing
from pilotkit.train.blocks import find_blocks
from pilotkit.train.models import gpt
from pilotkit.train.optimizer import build_optimizer
from pilotkit.train.parallelism import parallelize
from pilotkit.train.precision import PrecisionPolicy
from pilotkit.train.ranks import rank_and_world_size
from pilotkit.train.rows import RowStream
from pilotkit.train.scheduler import build_scheduler
from pilotkit.train.seeding import seed_everything
from pilotkit.train.trainer import Trainer

CPU = torch.device("cpu")
SEQ_LEN, VOCAB_SIZE = 16, 32
FP32 = PrecisionPolicy(param_dtype="float32", compute_dtype="float32", reduce_dtype="float32")
BF16_MIXED = PrecisionPolicy(param_dtype="float32", compute_dtype="bfloat16", reduce_dtype="float32")
BF16 = PrecisionPolicy(param_dtype="bfloat16", compute_dtype="bfloat16", reduce_dtype="bfloat16")
FP16_MIXED = PrecisionPolicy(param_dtype="float32", compute_dtype="float16", reduce_dtype="float32", grad_scaler=True)
ADAMW = {"name": "adamw", "lr": 1e-2, "betas": [0.9, 0.95], "eps": 1e-8, "momentum": 0.0, "weight_decay": 0.1}


class CountingRows:
    """Row i counts on from i, modulo the vocabulary: learnt in a few steps."""

    def __init__(self, rows: range) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(SEQ_LEN) + self.rows[index]) % VOCAB_SIZE
        return {"input_ids": tokens, "labels": tokens}


def build_model(*, dropout: float = 0.0) -> torch.nn.Module:
    return gpt.build(
        vocab_size=VOCAB_SIZE,
        num_layers=2,
        num_heads=2,
        hidden_size=16,
        max_seq_len=SEQ_LEN,
        dropout=dropout,
        tie_embeddings=True,
    )


def build_trainer(
    *,
    strategy: str = "single",
    model: torch.nn.Module | None = None,
    model_seed: int = 0,
    grad_accum_steps: int = 1,
    precision: PrecisionPolicy = FP32,
    dropout: float = 0.0,
    activations: str = "none",
    optimizer: dict[str, Any] = ADAMW,
    num_workers: int = 0,
    seed: int = 5,
    num_rows: int = 80,
    dp_replicate: int = 1,
    wrap: Any = None,
    find_unused_parameters: bool = False,
    sync_each_micro_batch: bool = False,
) -> Trainer:
    rank, world_size = rank_and_world_size()
    seed_everything(model_seed, rank=0, deterministic=True)
    model = precision.cast(build_model(dropout=dropout) if model is None else model)
    seed_everything(7, rank=rank, deterministic=True)
    blocks = find_blocks(model)
    activation_checkpointing.apply(model, mode=activations, blocks=blocks)
    model = parallelize(
        model,
        strategy=strategy,
        dp_replicate=dp_replicate,
        dp_shard=world_size // dp_replicate,
        precision=precision,
        device=CPU,
        blocks=blocks,
        reshard_after_forward=True,
        find_unused_parameters=find_unused_parameters,
    )
    if wrap is not None:
        model = wrap(model)
    built = build_optimizer(model.parameters(), **{"implementation": "foreach", **optimizer})
    return Trainer(
        model,
        optimizer=built,
        scheduler=build_scheduler(built, name="cosine", lr_warmup_steps=3, num_steps=20, min_lr_ratio=0.1),
        scaler=precision.build_scaler(CPU),
        precision=precision,
        train_rows=RowStream(
            CountingRows(range(num_rows)),
            micro_batch_size=2,
            seed=seed,
            rank=rank,
            world_size=world_size,
            num_workers=num_workers,
        ),
        eval_dataset=CountingRows(range(1000, 1010)),
        device=CPU,
        grad_accum_steps=grad_accum_steps,
        max_grad_norm=1.0,
        strategy=strategy,
        find_unused_parameters=find_unused_parameters,
        sync_each_micro_batch=sync_each_micro_batch,
        rank=rank,
        world_size=world_size,
        micro_batch_size=2,
        seq_len=SEQ_LEN,
    )


def run_steps(trainer: Trainer, num_steps: int) -> dict[str, list[Any]]:
    results = [trainer.train_step() for _ in range(num_steps)]
    return {
        "losses": [result.loss for result in results],
        "grad_norms": [result.grad_norm for result in results],
        "row_ids": [list(result.row_ids) for result in results],
        "num_tokens": [result.num_tokens for result in results],
    }


def frozen_model() -> torch.nn.Module:
    torch.manual_seed(0)
    model = build_model()
    for part in (model.token_embedding, model.blocks[0]):
        part.requires_grad_(False)
    return model
