"""What an estimate costs: time and memory of its worker process, for the four questions that docs/estimate.md names.

    python benchmarks/bench_estimate.py [one] [grid] [405b] [million]

`one`: Llama 3 8B at one shape, the whole command from typing it to its record. `grid`: the same with 16 x 16 points and
reserved memory, the whole command. `405b`: Llama 3 405B on 1,024 devices, the whole command. `million`: allocated peaks
of a million points, once fitted. Wall time, processor time of all processes beside it, and the largest resident memory
of one process. Not part of `make bench`. Exits 1 when a limit is missed: run it on an idle machine.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import describe

from pilotkit.units import GIB

ROOT = Path(__file__).resolve().parents[1]
RUN = ("stage=estimate", "hardware=h100", "parallelism=fsdp", "precision=bf16_mixed", "activation_checkpointing=full")
LENGTHS = [256 * number for number in range(1, 17)]
GRID = (f"estimate.micro_batch_sizes={list(range(1, 17))}", f"estimate.seq_lens={LENGTHS}")
# arXiv:2407.21783, table 3.
LLAMA_405B = (
    "model=llama3_8b", "model.name=llama3_405b", "model.kwargs.num_layers=126", "model.kwargs.num_heads=128",
    "model.kwargs.hidden_size=16384", "model.kwargs.ffn_size=53248",
    "parallelism.num_nodes=128", "parallelism.nproc_per_node=8",
)  # fmt: skip
COMMANDS: dict[str, tuple[tuple[str, ...], float]] = {
    "one": (("model=llama3_8b", "train.seq_len=8192"), 5.0),
    "grid": (("model=llama3_8b", "train.seq_len=8192", *GRID), 20.0),
    "405b": ((*LLAMA_405B, "train.seq_len=8192"), 30.0),
}
MEMORY_LIMIT = 1 * GIB
MILLION_LIMIT = 2.0


def main(*asked: str) -> int:
    """Print a line for each question."""
    print(describe("torch"))
    names = asked or (*COMMANDS, "million")
    held = [million() if name == "million" else command(name) for name in names]
    return int(not all(held))


def command(name: str) -> bool:
    """One whole command; memory is the largest of any of its processes."""
    overrides, limit = COMMANDS[name]
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        run = subprocess.run(
            [sys.executable, "-m", "pilotkit", *RUN, *overrides],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        seconds = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = list(Path(folder).glob("outputs/*/estimate/*/record.json"))
    if run.returncode or not found:
        print(f"{name}: did not run\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
        return False
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    memory = after.ru_maxrss * 1024
    held = seconds <= limit and memory <= MEMORY_LIMIT
    print(
        f"{name}: {seconds:.1f} s (limit {limit:.0f}), {processor:.1f} s of processor time, at most "
        f"{memory / GIB:.2f} GiB in a process (limit {MEMORY_LIMIT / GIB:.0f}): {'held' if held else 'MISSED'}"
    )
    return held


def million() -> bool:
    """A million points of a fitted Llama 3 8B."""
    from functools import partial

    import torch

    from pilotkit.estimate.grid import fit
    from pilotkit.estimate.predict import Estimator
    from pilotkit.estimate.workload import Workload
    from pilotkit.train.models import llama
    from pilotkit.train.precision import PrecisionPolicy

    build = partial(
        llama.build, vocab_size=128256, num_layers=32, num_heads=32, num_kv_heads=8, hidden_size=4096, ffn_size=14336,
        max_seq_len=131072, rope_theta=5e5,
    )  # fmt: skip
    mixed = PrecisionPolicy(param_dtype="float32", compute_dtype="bfloat16", reduce_dtype="float32")

    def row(seq_len: int) -> dict[str, torch.Tensor]:
        tokens = torch.zeros(seq_len, dtype=torch.int64)
        return {"input_ids": tokens, "labels": tokens}

    grid = fit(Estimator(Workload(build, row, "fsdp", dp_shard=8, precision=mixed, device_type="cuda")))
    draw = np.random.default_rng(0)
    batches, lengths = draw.integers(1, 65, 1_000_000), draw.integers(1, 65_536, 1_000_000)
    start = time.perf_counter()
    grid.peak_allocated_bytes(batches, lengths)
    seconds = time.perf_counter() - start
    held = seconds <= MILLION_LIMIT
    print(f"million: {seconds:.2f} s (limit {MILLION_LIMIT:.0f}): {'held' if held else 'MISSED'}")
    return held


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
