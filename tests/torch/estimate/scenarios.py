"""Small training runs that are both traced and run: models of several kinds, and every way to train them.

`python scenarios.py OUT RANK WORLD_SIZE PORT NAME...` runs the named ones for real on one gloo rank and leaves the peak
of live tensors in the second step, from `pilotkit.meter`, in OUT/<rank>.json.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pilotkit.estimate.workload import ADAMW, Workload
from pilotkit.meter.memory import LiveTensorTracker
from pilotkit.train import activation_checkpointing
from pilotkit.train.blocks import find_blocks
from pilotkit.train.models import gpt, llama
from pilotkit.train.optimizer import build_optimizer
from pilotkit.train.parallelism import parallelize
from pilotkit.train.precision import PrecisionPolicy
from pilotkit.train.rows import RowStream
from pilotkit.train.scheduler import build_scheduler
from pilotkit.train.trainer import Trainer

CPU = torch.device("cpu")
BATCH, SEQ_LEN, VOCAB = 4, 32, 96
BF16_MIXED = PrecisionPolicy(param_dtype="float32", compute_dtype="bfloat16", reduce_dtype="float32")
BF16 = PrecisionPolicy(param_dtype="bfloat16", compute_dtype="bfloat16", reduce_dtype="bfloat16")
FP16_MIXED = PrecisionPolicy(param_dtype="float32", compute_dtype="float16", reduce_dtype="float32", grad_scaler=True)


class Output(NamedTuple):
    loss: Tensor


class TextRows:
    """Rows of tokens, their own labels."""

    def __init__(self, seq_len: int) -> None:
        self.seq_len = seq_len

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (torch.arange(self.seq_len) + index) % VOCAB
        return {"input_ids": tokens, "labels": tokens}


class PictureRows:
    """Pictures of 3 x 32 x 32 with a class."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"pixels": torch.full((3, 32, 32), index / 64), "label": torch.tensor(index % 10)}


class PairRows:
    """A source and a target sequence of unlike lengths."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"source": torch.arange(24) % VOCAB, "target": torch.arange(16) % VOCAB}


class Vision(nn.Module):
    """Convolutions with batch norm, whose buffers change in a step."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(i, o, 3, stride=2, padding=1), nn.BatchNorm2d(o), nn.ReLU())
            for i, o in pairwise(widths)
        )
        self.head = nn.Linear(32, 10)

    def forward(self, pixels: Tensor, label: Tensor) -> Output:
        x = pixels
        for layer in self.layers:
            x = layer(x)
        return Output(nn.functional.cross_entropy(self.head(x.mean(dim=(2, 3))), label))


class EncoderDecoder(nn.Module):
    """torch's own Transformer, both halves."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 32)
        self.body = nn.Transformer(32, 2, 2, 2, 64, dropout=dropout, batch_first=True)
        self.head = nn.Linear(32, VOCAB)

    def forward(self, source: Tensor, target: Tensor) -> Output:
        x = self.body(self.embedding(source), self.embedding(target))
        return Output(nn.functional.cross_entropy(self.head(x).flatten(0, 1), target.flatten()))


class Experts(nn.Module):
    """Every token through every expert, mixed by a router: a dense mixture."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 32)
        self.router = nn.Linear(32, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4))
        self.head = nn.Linear(32, VOCAB)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Output:
        x = self.embedding(input_ids)
        weights = self.router(x).softmax(-1)
        mixed = sum(weights[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
        return Output(nn.functional.cross_entropy(self.head(mixed).flatten(0, 1), labels.flatten()))


def build_gpt(*, dropout: float = 0.0, tied: bool = True, num_layers: int = 3, frozen: bool = False) -> nn.Module:
    model = gpt.build(
        vocab_size=VOCAB,
        num_layers=num_layers,
        num_heads=2,
        hidden_size=32,
        max_seq_len=512,
        dropout=dropout,
        tie_embeddings=tied,
    )
    if frozen:
        for block in list(model.get_submodule("blocks").children())[:2]:
            block.requires_grad_(False)
    return model


def build_llama(*, num_layers: int = 3, loss_chunks: int = 1) -> nn.Module:
    return llama.build(
        vocab_size=VOCAB,
        num_layers=num_layers,
        num_heads=4,
        num_kv_heads=2,
        hidden_size=32,
        ffn_size=80,
        max_seq_len=512,
        rope_theta=1e4,
        loss_chunks=loss_chunks,
    )


TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def build_mixtral() -> nn.Module:
    """Experts that are chosen for each token; transformers multiplies their rows in groups."""
    import transformers

    config = transformers.MixtralConfig(
        **TINY,
        vocab_size=VOCAB,
        num_key_value_heads=2,
        intermediate_size=48,
        num_local_experts=4,
        num_experts_per_tok=2,
        output_router_logits=True,
        use_cache=False,
    )
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
    return model


class VisionTransformer(nn.Module):
    """transformers' own, whose weights are drawn from a truncated normal."""

    def __init__(self) -> None:
        import transformers

        super().__init__()
        config = transformers.ViTConfig(**TINY, intermediate_size=64, image_size=32, patch_size=8, num_labels=10)
        self.body = transformers.AutoModelForImageClassification.from_config(config)

    def forward(self, pixels: Tensor, label: Tensor) -> Output:
        return Output(self.body(pixel_values=pixels, labels=label).loss)


class Fused(nn.Module):
    """A loss of torch's own that never holds the logits whole, as a user's factory may take it (torch 2.13)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 32)
        self.head = nn.Linear(32, VOCAB, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Output:
        functional: Any = nn.functional
        options = nn.LinearCrossEntropyOptions(batch_chunk_size=48, chunking_method=None)
        x = self.embedding(input_ids).flatten(0, 1)
        return Output(functional.linear_cross_entropy(x, self.head.weight, labels.flatten(), options=options))


def optimizer(
    name: str = "adamw", implementation: str = "foreach", momentum: float = 0.0, **more: Any
) -> Mapping[str, Any]:
    return {**ADAMW, "name": name, "implementation": implementation, "momentum": momentum, **more}


def text_row(seq_len: int) -> Mapping[str, Tensor]:
    return TextRows(seq_len)[0]


GPT = Workload(build_gpt, text_row)
LLAMA = Workload(build_llama, text_row)
VISION = Workload(Vision, lambda _: PictureRows()[0])
PAIRS = Workload(EncoderDecoder, lambda _: PairRows()[0])
EXPERTS = Workload(Experts, text_row)
MIXTRAL = Workload(build_mixtral, text_row)

SINGLE: dict[str, Workload] = {
    "gpt": GPT,
    "gpt dropout": dataclasses.replace(GPT, build_model=partial(build_gpt, dropout=0.1)),
    "gpt untied": dataclasses.replace(GPT, build_model=partial(build_gpt, tied=False)),
    "gpt partly frozen": dataclasses.replace(GPT, build_model=partial(build_gpt, frozen=True)),
    "gpt full recomputation": dataclasses.replace(GPT, activation_checkpointing="full"),
    "gpt selective recomputation": dataclasses.replace(GPT, activation_checkpointing="selective"),
    "gpt bf16": dataclasses.replace(GPT, precision=BF16),
    "gpt bf16 mixed": dataclasses.replace(GPT, precision=BF16_MIXED),
    "gpt fp16 mixed": dataclasses.replace(GPT, precision=FP16_MIXED),
    "gpt bf16 mixed, full recomputation": dataclasses.replace(
        GPT, precision=BF16_MIXED, activation_checkpointing="full"
    ),
    "gpt accumulates": dataclasses.replace(GPT, grad_accum_steps=3),
    "gpt clips nothing": dataclasses.replace(GPT, max_grad_norm=None),
    "gpt fused": dataclasses.replace(GPT, optimizer=optimizer(implementation="fused")),
    "gpt for loop": dataclasses.replace(GPT, optimizer=optimizer(implementation="for_loop")),
    "gpt adam": dataclasses.replace(GPT, optimizer=optimizer("adam")),
    "gpt amsgrad": dataclasses.replace(GPT, optimizer=optimizer(amsgrad=True)),
    "gpt adamw of 8 bits": dataclasses.replace(GPT, optimizer=optimizer("adamw8bit", "compiled")),
    "gpt sgd": dataclasses.replace(GPT, optimizer=optimizer("sgd")),
    "gpt sgd momentum": dataclasses.replace(GPT, optimizer=optimizer("sgd", momentum=0.9)),
    "llama": LLAMA,
    "llama, loss in 4 chunks, bf16 mixed": dataclasses.replace(
        LLAMA, build_model=partial(build_llama, loss_chunks=4), precision=BF16_MIXED
    ),
    "llama, loss in 2 chunks": dataclasses.replace(LLAMA, build_model=partial(build_llama, loss_chunks=2)),
    "llama bf16 mixed": dataclasses.replace(LLAMA, precision=BF16_MIXED),
    "llama selective, every second product": dataclasses.replace(
        LLAMA, activation_checkpointing="selective", keep_every=2
    ),
    "llama bf16 selective": dataclasses.replace(LLAMA, precision=BF16, activation_checkpointing="selective"),
    "llama full recomputation, fused": dataclasses.replace(
        LLAMA, activation_checkpointing="full", optimizer=optimizer(implementation="fused")
    ),
    "vision": VISION,
    "vision bf16 mixed": dataclasses.replace(VISION, precision=BF16_MIXED),
    "encoder and decoder": PAIRS,
    "encoder and decoder, bf16": dataclasses.replace(PAIRS, precision=BF16),
    "vision transformer": Workload(VisionTransformer, lambda _: PictureRows()[0]),
    "mixtral": MIXTRAL,
    "mixtral bf16": dataclasses.replace(MIXTRAL, precision=BF16),
    "mixtral bf16 mixed": dataclasses.replace(MIXTRAL, precision=BF16_MIXED),
    "experts": EXPERTS,
    "experts, sgd, accumulates": dataclasses.replace(EXPERTS, optimizer=optimizer("sgd"), grad_accum_steps=2),
}
if hasattr(nn.functional, "linear_cross_entropy"):
    SINGLE["fused loss"] = Workload(Fused, text_row)
    SINGLE["fused loss, bf16"] = dataclasses.replace(SINGLE["fused loss"], precision=BF16)


def spread(workload: Workload, strategy: str, world_size: int, **changes: Any) -> Workload:
    replicate, shard = (world_size, 1) if strategy == "ddp" else (1, world_size)
    if strategy == "hsdp":
        replicate, shard = 2, world_size // 2
    return dataclasses.replace(workload, strategy=strategy, dp_replicate=replicate, dp_shard=shard, **changes)


def spread_scenarios(world_size: int) -> dict[str, Workload]:
    """What runs on several ranks."""
    found = {
        "ddp": spread(GPT, "ddp", world_size),
        "ddp bf16 mixed": spread(LLAMA, "ddp", world_size, precision=BF16_MIXED),
        "ddp accumulates": spread(GPT, "ddp", world_size, grad_accum_steps=2),
        "fsdp": spread(GPT, "fsdp", world_size),
        "fsdp bf16 mixed": spread(LLAMA, "fsdp", world_size, precision=BF16_MIXED),
        "fsdp full recomputation": spread(LLAMA, "fsdp", world_size, activation_checkpointing="full"),
        "fsdp accumulates": spread(LLAMA, "fsdp", world_size, grad_accum_steps=2),
        "fsdp accumulates, reduces each": spread(
            LLAMA, "fsdp", world_size, grad_accum_steps=2, sync_each_micro_batch=True, precision=BF16_MIXED
        ),
        "fsdp keeps parameters": spread(LLAMA, "fsdp", world_size, reshard_after_forward=False),
    }
    if world_size == 4:
        found["hsdp"] = spread(GPT, "hsdp", world_size)
    else:
        chunks = partial(build_llama, loss_chunks=4)
        found["fsdp, loss in chunks"] = spread(
            dataclasses.replace(LLAMA, build_model=chunks), "fsdp", world_size, precision=BF16_MIXED
        )
    return found


def rows_of(workload: Workload) -> Any:
    names = set(workload.read_row(SEQ_LEN))
    return PictureRows() if "pixels" in names else PairRows() if "source" in names else TextRows(SEQ_LEN)


def run_for_real(
    workload: Workload, *, rank: int = 0, first: Callable[[Trainer], object] | None = None
) -> dict[str, int]:
    """Peaks of live tensors in a first step, a steady one and an evaluation, bytes. `first` is done before them."""
    torch.manual_seed(0)
    model = workload.precision.cast(workload.build_model())
    blocks = find_blocks(model, path=workload.blocks)
    activation_checkpointing.apply(
        model, mode=workload.activation_checkpointing, blocks=blocks, keep_every=workload.keep_every
    )
    rows = rows_of(workload)
    stream = RowStream(rows, micro_batch_size=BATCH, seed=0, rank=rank, world_size=workload.world_size)
    stream.next()
    on_host = 0
    if workload.strategy in ("fsdp", "hsdp"):
        on_host = torch.arange(workload.world_size, dtype=torch.int32).nbytes  # ranks of the device mesh
    tracker = LiveTensorTracker()
    with tracker:
        model = parallelize(
            model,
            strategy=workload.strategy,
            dp_replicate=workload.dp_replicate,
            dp_shard=workload.dp_shard,
            precision=workload.precision,
            device=CPU,
            blocks=blocks,
            reshard_after_forward=workload.reshard_after_forward,
            find_unused_parameters=False,
        )
        tracker.track(model)
        made = build_optimizer(model.parameters(), **workload.optimizer)
        trainer = Trainer(
            model,
            optimizer=made,
            scheduler=build_scheduler(made, name="constant", lr_warmup_steps=0, num_steps=9, min_lr_ratio=0.0),
            scaler=workload.precision.build_scaler(CPU),
            precision=workload.precision,
            train_rows=stream,
            eval_dataset=rows,
            device=CPU,
            grad_accum_steps=workload.grad_accum_steps,
            max_grad_norm=workload.max_grad_norm,
            strategy=workload.strategy,
            find_unused_parameters=False,
            sync_each_micro_batch=workload.sync_each_micro_batch,
            rank=rank,
            world_size=workload.world_size,
            micro_batch_size=BATCH,
            seq_len=SEQ_LEN,
        )
        peaks = {}
        if first is not None:
            tracker.reset_peak()
            first(trainer)
            peaks["before"] = tracker.peak_bytes
        # A thread of gloo lets go of a collective's buffers when it is scheduled, after it woke the step that waits for
        # them: on a busy machine one step in a dozen holds them into backward. Longer only, so the least is it.
        steady = 1 if workload.world_size == 1 else 4
        for name, num_steps in (("first_step", 1), ("steady_step", steady)):
            found = []
            for _ in range(num_steps):
                tracker.reset_peak()
                trainer.train_step()
                found.append(tracker.peak_bytes - on_host)
            peaks[name] = min(found)
        tracker.reset_peak()
        trainer.evaluate(1)
        peaks["evaluation"] = tracker.peak_bytes - on_host
    return peaks


def main(folder: Path, rank: int, world_size: int, port: int, names: list[str]) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )
    torch.set_num_threads(1)
    scenarios = spread_scenarios(world_size)
    found = {name: run_for_real(scenarios[name], rank=rank) for name in names or scenarios}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
