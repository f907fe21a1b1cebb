"""Rows of a table of published runs: which can be built here, how surely, and the workload of each. For
`estimate_accuracy.py` and `estimate_speed.py`.

One row a run: id, source_locator, date, model and its sizes (n_layers, d_model, n_heads, n_kv_heads, d_ff, vocab,
tied_embeddings), gpu, n_gpus, parallelism, shard_degree, param_dtype, precision, optimizer, activation_ckpt, compile,
micro_batch, seq_len, grad_accum, tokens_per_s_per_gpu, peak_mem with its unit and kind, notes.
"""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pilotkit.estimate.workload import ADAMW, Workload
from pilotkit.train.models import gpt, llama
from pilotkit.train.models.language import LanguageModelOutput
from pilotkit.train.precision import PrecisionPolicy
from pilotkit.units import GIB

Row = Mapping[str, str]
MIXED = PrecisionPolicy(param_dtype="float32", compute_dtype="bfloat16", reduce_dtype="float32")
PURE = PrecisionPolicy(param_dtype="bfloat16", compute_dtype="bfloat16", reduce_dtype="bfloat16")
# Words of the table's notes for a configuration that its source does not state in full.
UNSURE = ("default", "assumed", "inferred", "not restated", "presumed")
CHECKPOINTING = {
    "none": ("none", 1),
    "full": ("full", 1),
    # torchtitan's policy keeps every second matrix product and the attention.
    "selective (op)": ("selective", 2),
    "selective (SAC)": ("selective", 2),
}
PARALLELISM = ("single", "DDP", "FSDP", "FSDP1", "FSDP2")
# torchtitan and torchtune compile block by block; torchao's runs are torchtitan's. Later ones compile the loss too (its
# build_cross_entropy_loss), from when on is not in any row.
COMPILED, COMPILED_LOSS_FROM = "torch.compile", "2025-06"
OPTIMIZERS = ("AdamW", "decoupled_adamw")
# torchtitan's loop kept the float32 logits alive during backward until this month (its train.py, `del pred`).
KEPT_LOGITS_UNTIL = "2024-06-30"
# litgpt's table of Thunder gives its commands: those of DDP and of one device leave the script's default of 512 rows a
# step, and accumulate; "gradient accumulation is disabled in the FSDP setting" alone (its README @059941f).
THUNDER_TABLE, THUNDER_GLOBAL_BATCH = "extensions/thunder/README.md", 512


@dataclass(frozen=True)
class Published:
    """One row that can be built. `memory` is GiB and its kind (allocated or reserved), None where none is given."""

    row: Row
    is_sure: bool
    memory: tuple[float, str] | None
    out_of_memory: bool
    tokens_per_second: float | None
    """Of one device."""

    @property
    def strategy(self) -> str:
        name = self.row["parallelism"].split()[0]
        return "fsdp" if name.startswith("FSDP") else name.lower()

    @property
    def num_devices(self) -> int:
        return int(self.row["n_gpus"] or self.row["shard_degree"] or 1)

    @property
    def is_compiled(self) -> bool:
        return self.row["compile"] == COMPILED

    @property
    def is_mpt(self) -> bool:
        return self.row["model"].startswith("MPT")

    @property
    def keeps_logits(self) -> bool:
        return "torchtitan" in self.row["source"] and self.row["date"][:7] <= KEPT_LOGITS_UNTIL[:7]

    @property
    def grad_accum_steps(self) -> int:
        if self.row["grad_accum"]:
            return int(self.row["grad_accum"])
        if THUNDER_TABLE not in self.row["source_locator"] or self.strategy == "fsdp":
            return 1
        return THUNDER_GLOBAL_BATCH // (int(self.row["micro_batch"]) * self.num_devices)

    @property
    def is_pure(self) -> bool:
        return self.row["param_dtype"].startswith("bf16")

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.row["micro_batch"]), int(self.row["seq_len"])

    def workload(self) -> Workload:
        """The run as it is traced."""
        row = self.row
        mode, keep_every = CHECKPOINTING[row["activation_ckpt"]]
        return Workload(
            self._builder(),
            lambda seq_len: dict.fromkeys(("input_ids", "labels"), torch.zeros(seq_len, dtype=torch.int64)),
            strategy=self.strategy,
            dp_shard=self.num_devices if self.strategy == "fsdp" else 1,
            dp_replicate=self.num_devices if self.strategy == "ddp" else 1,
            precision=PURE if self.is_pure else MIXED,
            activation_checkpointing=mode,
            keep_every=keep_every,
            optimizer={**ADAMW, "implementation": "fused" if "(fused" in row["optimizer"] else "foreach"},
            grad_accum_steps=self.grad_accum_steps,
            sync_each_micro_batch=self.is_mpt,  # Composer's default under FSDP
            device_type="cuda",
            compile=self.is_compiled,
            compile_scope="model" if self.row["date"] >= COMPILED_LOSS_FROM else "blocks",
            num_eval_batches=0,
        )

    def _builder(self) -> Callable[[], nn.Module]:
        row = self.row
        sizes = {
            "vocab_size": int(row["vocab"]),
            "num_layers": int(row["n_layers"]),
            "num_heads": int(row["n_heads"]),
            "hidden_size": int(row["d_model"]),
        }
        tied = row["tied_embeddings"] == "yes"
        if self.is_mpt:
            # Its parameters, counted, are those of this decoder: learned positions for seq_len, biases everywhere.
            return partial(FusedLoss, **sizes, max_seq_len=self.shape[1], dropout=0.0, tie_embeddings=tied)
        sizes |= {"num_kv_heads": int(row["n_kv_heads"]), "ffn_size": int(row["d_ff"]), "max_seq_len": 1 << 17}
        return partial(_build, sizes, tied=tied, keeps_logits=self.keeps_logits)


class FusedLoss(nn.Module):
    """A decoder as llm-foundry trains it: its `loss_fn: fused_crossentropy` is flash-attn's kernel, which reads logits
    in the format they have, keeps a number a row, and writes their gradient in that format."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__()
        self.decoder = gpt.build(**sizes)

    def forward(self, input_ids: Tensor, labels: Tensor) -> LanguageModelOutput:
        logits = self.decoder(input_ids).logits
        return LanguageModelOutput(_FusedCrossEntropy.apply(logits.flatten(0, 1), labels), logits)


class _FusedCrossEntropy(torch.autograd.Function):
    """Its memory and its traffic, without its arithmetic."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, _labels: Tensor) -> Tensor:
        losses = logits.amax(-1).float()
        ctx.save_for_backward(logits, losses)
        return losses.mean()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Tensor, None]:
        logits, _losses = ctx.saved_tensors
        return -logits, None


def _build(sizes: Mapping[str, Any], *, tied: bool, keeps_logits: bool) -> nn.Module:
    model: Any = llama.build(**sizes, rope_theta=5e5)
    if tied:
        model.lm_head.weight = model.token_embedding.weight
    if keeps_logits:
        model.lm_head.register_forward_hook(_keep)
    return model


def _keep(module: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
    """A loop whose variable holds the float32 logits until the next step."""
    module.held = output.float()
    return module.held


def read(path: str) -> list[Published]:
    """The rows that can be built, in the order of the table."""
    with open(path, encoding="utf-8") as stream:
        return [found for row in csv.DictReader(stream) if (found := _published(row)) is not None]


def _published(row: Row) -> Published | None:
    try:
        sizes = [int(row[name]) for name in ("micro_batch", "seq_len", "d_ff", "n_layers", "n_heads", "n_kv_heads")]
    except ValueError:
        return None
    buildable = (
        min(sizes) > 0
        and any(name in row["model"].lower() for name in ("llama", "mpt"))
        and "+" not in row["parallelism"]
        and row["parallelism"].split()[0] in PARALLELISM
        and row["compile"] in ("eager", COMPILED)
        and row["activation_ckpt"] in CHECKPOINTING
        and row["optimizer"].split()[0] in OPTIMIZERS
        and "bf16" in row["precision"]
        and not re.search("float8|FP8|NF4|nf4|QLoRA|LoRA|chunked cross", row["precision"] + row["notes"])
        and "offload" not in row["activation_ckpt"]
    )
    if not buildable:
        return None
    inferred = row["compile"] == COMPILED and row["date"] >= COMPILED_LOSS_FROM
    sure = not inferred and not any(word in row["notes"].lower() for word in UNSURE)
    rates = [float(part) for part in re.findall(r"\d+(?:\.\d+)?", row["tokens_per_s_per_gpu"] or "")]
    memory = _memory(row)
    oom = row["peak_mem"] == "OOM"
    if memory is None and not oom and not rates:
        return None
    return Published(row, sure, memory, oom, statistics.fmean(rates) if rates else None)  # a range is its middle


def _memory(row: Row) -> tuple[float, str] | None:
    percent = re.match(r"([\d.]+)% active / [\d.]+% reserved", row["peak_mem"])
    if percent:  # what is active is what tensors hold
        return float(percent[1]) / 100 * float(row["peak_mem_unit"].split()[2]), "allocated"
    try:
        value = float(row["peak_mem"])
    except ValueError:
        return None
    # "GB" alone is what training logs call GiB; decimal ones say so.
    factor = 1e9 / GIB if row["peak_mem_unit"].startswith("GB (") else 1.0
    return value * factor, "reserved" if "reserved" in row["peak_mem_kind"] else "allocated"


def words(row: Published) -> str:
    values: dict[str, Any] = dict(row.row)
    batch, seq_len = row.shape
    name = f"{values['model'][:14]}, {values['parallelism'].split()[0]} {row.num_devices}, {values['activation_ckpt']}"
    return f"{values['id']:<14}{name:<44}{batch:>3} x {seq_len:<6}"


def tell_errors(name: str, errors: Sequence[float]) -> None:
    if errors:
        sizes = [abs(error) for error in errors]
        near, fair = (sum(size <= limit for size in sizes) for limit in (0.03, 0.10))
        print(
            f"{name}: median {100 * statistics.median(sizes):.1f} %, worst {100 * max(sizes):.1f} % "
            f"({near} of {len(sizes)} within 3 %, {fair} within 10 %)"
        )
