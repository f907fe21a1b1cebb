"""Estimated memory against published measurements, with other estimators beside it. Our misses first.

    python benchmarks/estimate_accuracy.py published_runs.csv

`published.py` says which rows can be built here and what their columns are; rows whose configuration is partly inferred
are printed apart and stay out of the headline, as do published failures, which only a verdict can be checked on. FSDP1
rows are estimated as `fully_shard`. Not part of `make bench`: nothing is measured here. Time: `estimate_speed.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from estimate_peers import absent, peers
from machine import describe
from published import Published, read, tell_errors, words

from pilotkit.estimate.predict import Prediction, predict
from pilotkit.units import GIB


def main(path: str) -> None:
    print(describe("torch", "pilotkit"))
    if absent():
        print(f"absent, not compared: {', '.join(absent())}")
    rows = read(path)
    found = []
    for row in rows:
        batch, seq_len = row.shape
        found.append((row, predict(row.workload(), micro_batch_size=batch, seq_len=seq_len)))
    tell_memory([item for item in found if item[0].memory and item[0].is_sure], "Memory, fully specified")
    tell_memory([item for item in found if item[0].memory and not item[0].is_sure], "Memory, partly inferred")
    tell_verdicts(found)


def tell_memory(found: Sequence[tuple[Published, Prediction]], title: str) -> None:
    lines = []
    for row, prediction in found:
        assert row.memory is not None
        measured, kind = row.memory
        estimated = held(prediction, kind)
        with torch.device("meta"):
            model = row.workload().build_model()
        lines.append((estimated / measured - 1, row, kind, measured, estimated, peers(row, model)))
    lines.sort(key=lambda line: -abs(line[0]))
    print(f"\n{title}: {len(lines)} rows")
    for error, row, kind, measured, estimated, others in lines:
        beside = "  ".join(f"{name} {100 * (value / measured - 1):+.0f} %" for name, value in others.items())
        print(
            f"{words(row)} {kind:<9} {measured:6.2f} GiB, estimated {estimated:6.2f} {100 * error:+5.1f} %   {beside}"
        )
    tell_errors("ours", [line[0] for line in lines])
    for name in ("llm-analysis", "DeepSpeed", "Accelerate"):
        tell_errors(name, [line[5][name] / line[3] - 1 for line in lines if name in line[5]])


def held(prediction: Prediction, kind: str) -> float:
    """GiB of what the row reports; published reserved figures come from expandable segments."""
    return (prediction.expandable.peak_reserved_bytes if kind == "reserved" else prediction.peak_allocated_bytes) / GIB


# What torch reports of these devices, GiB, by how the table names them.
TOTALS = {
    "H100 SXM 96GB": 95.0,
    "8xH100 (Meta 96GB": 95.0,
    "h100_80gb": 79.2,
    "A100 SXM4 40GB": 39.4,
    "a100_40gb": 39.4,
}


def tell_verdicts(found: Sequence[tuple[Published, Prediction]]) -> None:
    """Each row ran on its device, or is published as out of memory there: on which side is it estimated?"""
    wrong = []
    for row, prediction in found:
        limit = next((total for name, total in TOTALS.items() if row.row["gpu"].startswith(name)), 79.1)
        needed = prediction.expandable.peak_reserved_bytes / GIB
        if (needed < limit) == row.out_of_memory:
            wrong.append(f"{words(row)} estimated {needed:6.2f} GiB of {limit}")
    ran = sum(not row.out_of_memory for row, _ in found)
    print(
        f"\nVerdicts: {ran} rows ran, {len(found) - ran} are published as out of memory; {len(wrong)} are judged wrong"
    )
    for line in wrong:
        print(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
