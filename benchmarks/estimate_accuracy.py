"""Estimated peak memory against published measurements: our misses first, and the states alone beside them.

    python benchmarks/estimate_accuracy.py published_runs.csv

The table has one row a run: id, model and its sizes (n_layers, d_model, n_heads, n_kv_heads, d_ff, vocab), parallelism,
precision, optimizer, activation_ckpt, compile, micro_batch, seq_len, and peak_mem with its unit and kind. Rows that
this script can build are used: untied Llama decoders, eager, on one device, DDP or FSDP. Rows whose configuration is
partly inferred, or whose checkpointing policy saves other operators than ours (`selective`), are printed apart and stay
out of the headline. Not part of `make bench`: nothing is measured here.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Mapping
from functools import partial

import torch
from machine import describe

from pilotkit.estimate.predict import predict
from pilotkit.estimate.workload import ADAMW, Workload
from pilotkit.train.models import llama
from pilotkit.train.precision import PrecisionPolicy
from pilotkit.units import GIB

MIXED = PrecisionPolicy(param_dtype="float32", compute_dtype="bfloat16", reduce_dtype="float32")
PURE = PrecisionPolicy(param_dtype="bfloat16", compute_dtype="bfloat16", reduce_dtype="bfloat16")
UNSURE = ("default", "assumed", "inferred", "not restated")
Row = Mapping[str, str]


def main(path: str) -> None:
    print(describe("torch", "pilotkit"))
    with open(path, encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if is_usable(row)]
    found = [(*judge(row), row) for row in rows]
    for title, sure in (("Fully specified", True), ("Partly inferred, or another checkpointing policy", False)):
        part = sorted(
            (item for item in found if is_sure(item[3]) == sure), key=lambda item: -abs(item[0] / item[1] - 1)
        )
        print(f"\n{title}: {len(part)} rows")
        for predicted, measured, static, row in part:
            print(
                f"{row['id']:<14}{row['model']:<16}{row['parallelism']:<12.12}{row['activation_ckpt']:<15}"
                f"B={row['micro_batch']:<3}S={row['seq_len']:<6}measured {measured:6.2f} GiB  "
                f"estimated {predicted:6.2f} GiB {100 * (predicted / measured - 1):+6.1f} %  "
                f"states alone {static:6.2f} GiB {100 * (static / measured - 1):+6.1f} %"
            )
        if part:
            errors = [abs(item[0] / item[1] - 1) for item in part]
            print(f"median {100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} %")


def is_usable(row: Row) -> bool:
    try:
        float(row["peak_mem"]), int(row["micro_batch"]), int(row["seq_len"]), int(row["d_ff"])
    except ValueError:
        return False
    plain = (
        row["parallelism"].split()[0] in ("single", "DDP", "FSDP2", "FSDP", "FSDP1") and "+" not in row["parallelism"]
    )
    return (
        plain
        and "llama" in row["model"].lower()
        and row["tied_embeddings"] == "no"
        and row["compile"] == "eager"
        and row["tp"] in ("", "1")
        and row["activation_ckpt"] in ("none", "full", "selective (op)")
        and row["optimizer"].split()[0] == "AdamW"
        and ("bf16" in row["precision"] and "float8" not in row["precision"])
    )


def is_sure(row: Row) -> bool:
    return row["activation_ckpt"] != "selective (op)" and not any(word in row["notes"].lower() for word in UNSURE)


def judge(row: Row) -> tuple[float, float, float]:
    """Estimated, measured, and the sharded weights, gradients and Adam's moments alone; GiB."""
    fsdp = row["parallelism"].startswith("FSDP")
    ddp = row["parallelism"].startswith("DDP")
    workload = Workload(
        partial(
            llama.build,
            vocab_size=int(row["vocab"]),
            num_layers=int(row["n_layers"]),
            num_heads=int(row["n_heads"]),
            num_kv_heads=int(row["n_kv_heads"]),
            hidden_size=int(row["d_model"]),
            ffn_size=int(row["d_ff"]),
            max_seq_len=1 << 17,
            rope_theta=5e5,
        ),
        lambda seq_len: dict.fromkeys(("input_ids", "labels"), torch.zeros(seq_len, dtype=torch.int64)),
        strategy="fsdp" if fsdp else "ddp" if ddp else "single",
        dp_shard=int(row["shard_degree"]) if fsdp else 1,
        dp_replicate=int(row["n_gpus"]) if ddp else 1,
        precision=PURE if row["param_dtype"].startswith("bf16") else MIXED,
        activation_checkpointing=row["activation_ckpt"].removesuffix(" (op)"),
        optimizer={**ADAMW, "implementation": "fused" if "fused" in row["optimizer"] else "foreach"},
        device_type="cuda",
        num_eval_batches=0,
    )
    found = predict(workload, micro_batch_size=int(row["micro_batch"]), seq_len=int(row["seq_len"]))
    is_reserved = "reserved" in row["peak_mem_kind"]
    predicted = found.expandable.peak_reserved_bytes if is_reserved else found.peak_allocated_bytes
    element = 2 if workload.precision is PURE else 4
    static = 4 * element * found.num_params / (workload.dp_shard if fsdp else 1)
    measured = float(row["peak_mem"]) * (1e9 if row["peak_mem_unit"].startswith("GB (") else GIB)
    return predicted / GIB, measured / GIB, static / GIB


if __name__ == "__main__":
    main(sys.argv[1])
