"""Predict, then run: eight configurations on the device that is here, estimate beside measurement.

    python benchmarks/gpu_estimate.py --hardware h100 | tee benchmarks/results/<date>-<device>-estimate.txt
    python benchmarks/gpu_estimate.py --hardware cpu            # the same way on a processor, with a tiny model

All by the command line, in a folder of its own: `stage=estimate` with nothing measured, the same once more with what
the configurations before have measured (so no run corrects its own estimate), then the run itself: `measure` on one
device, `pilot` for DDP and FSDP of world size 1. Prints PASS or FAIL for the allocated peak (within 3 %; on a
processor to the byte, but for the compiled run, which is modelled) and for reserved memory (within 10 %); step times
are told and not judged. Exits 1 when one fails or did not run. About five minutes on an accelerator that nobody else
uses.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from machine import describe

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATIONS: dict[str, tuple[str, ...]] = {
    "one device, fp32": ("precision=fp32", "parallelism=single"),
    "one device, bf16 mixed": ("precision=bf16_mixed", "parallelism=single"),
    "one device, bf16": ("precision=bf16", "parallelism=single"),
    "one device, full recomputation": ("precision=bf16_mixed", "parallelism=single", "activation_checkpointing=full"),
    "one device, compiled": ("precision=bf16_mixed", "parallelism=single", "train.compile=true"),
    "DDP of one": ("precision=bf16_mixed", "parallelism=ddp"),
    "FSDP of one": ("precision=bf16_mixed", "parallelism=fsdp"),
    "FSDP of one, full recomputation": ("precision=bf16_mixed", "parallelism=fsdp", "activation_checkpointing=full"),
}
SIZE = {
    "cpu": ("model=gpt_tiny", "train.seq_len=64", "train.micro_batch_size=2", "measure.num_measured_steps=10"),
    "accelerator": ("model=gpt2", "train.seq_len=1024", "train.micro_batch_size=8"),
}
ALLOCATED_WITHIN, RESERVED_WITHIN = 0.03, 0.10


class DidNotRun(Exception):
    """A stage ended without the figures that are compared."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line a configuration and what failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hardware", required=True, help="the hardware option of the device that is here, or cpu")
    parser.add_argument("--only", action="append", help="names of configurations; all when none is given")
    given = parser.parse_args(arguments)
    on_cpu = given.hardware == "cpu"
    print(describe("torch"))
    print(f"hardware={given.hardware} {' '.join(SIZE['cpu' if on_cpu else 'accelerator'])}")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in given.only or CONFIGURATIONS:
            words = (
                f"hardware={given.hardware}",
                "parallelism.nproc_per_node=1",
                *SIZE["cpu" if on_cpu else "accelerator"],
                *CONFIGURATIONS[name],
            )
            try:
                held = compare(name, words, folder=Path(folder), on_cpu=on_cpu)
            except DidNotRun as error:
                print(f"{name}: DID NOT RUN\n{error}")
                held = False
            failed += not held
    print(f"{failed} failed" if failed else "all held")
    return int(failed > 0)


def compare(name: str, words: Sequence[str], *, folder: Path, on_cpu: bool) -> bool:
    """One configuration: two estimates, a run, and the line about them."""
    fresh = stage(folder, "estimate", *words, "estimate.calibrate=false")
    corrected = stage(folder, "estimate", *words)
    strategy = next(word.removeprefix("parallelism=") for word in words if word.startswith("parallelism="))
    if strategy == "single":
        real, prefix = stage(folder, "measure", *words), ""
    else:
        real, prefix = (
            stage(folder, "pilot", *words, f"pilot.strategies=[{strategy}]", "pilot.allow_idle_devices=true"),
            f"{strategy}_",
        )
    # `measure` and `pilot` take their peak in a step whose state is there: the estimate's steady step.
    allocated = error_of(fresh["steady_step_peak_bytes"], real[f"{prefix}peak_allocated_bytes"])
    # A processor runs what was traced; compiled code is modelled on it too.
    is_exact = on_cpu and "train.compile=true" not in words
    parts = [f"allocated {allocated:+.2%}"]
    verdicts = [allocated == 0 if is_exact else abs(allocated) <= ALLOCATED_WITHIN]
    reserved = real.get(f"{prefix}peak_reserved_bytes")
    if reserved is not None and not on_cpu:
        # torch's own default; a run under expandable_segments says so in its record.
        error = error_of(fresh["native_reserved_bytes"], reserved)
        parts.append(f"reserved {error:+.2%}")
        verdicts.append(abs(error) <= RESERVED_WITHIN)
    for estimate, kind in ((fresh, "uncalibrated"), (corrected, "with the runs before")):
        if "step_seconds" in estimate:
            parts.append(f"step {error_of(estimate['step_seconds'], real[f'{prefix}step_seconds']):+.1%} {kind}")
    held = all(verdicts)
    print(f"{name}: {', '.join(parts)}: {'PASS' if held else 'FAIL'}", flush=True)
    return held


def error_of(estimated: float, real: float) -> float:
    """Relative to what was measured."""
    return estimated / real - 1


def stage(folder: Path, name: str, *words: str) -> dict[str, Any]:
    """The metrics of one stage. Raises DidNotRun with the end of its output."""
    done = subprocess.run(
        [sys.executable, "-m", "pilotkit", f"stage={name}", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    records = sorted(folder.glob(f"outputs/*/{name}/*/record.json"), key=lambda path: path.stat().st_mtime_ns)
    record = json.loads(records[-1].read_text(encoding="utf-8")) if records else {}
    if done.returncode or record.get("status") not in ("ok", "does_not_fit") or "metrics" not in record:
        raise DidNotRun(f"{' '.join(words)}\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    metrics: dict[str, Any] = record["metrics"]
    return metrics


if __name__ == "__main__":
    sys.exit(main())
