"""Estimates against published measurements: memory, with other estimators beside it, and speed. Our misses first.

    python benchmarks/estimate_accuracy.py published_runs.csv [memory|speed]

`published.py` says which rows can be built here and what their columns are; rows whose configuration is partly inferred
are printed apart and stay out of the headline, as do published failures, which only a verdict can be checked on. FSDP1
rows are estimated as `fully_shard`. Speed: with the starting efficiencies, and with those that all other sources of
the same device give (a row is never calibrated by its own source). Not part of `make bench`: nothing is measured here.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from estimate_peers import absent, peers
from machine import describe
from published import Published, read

from pilotkit.decide.calibration import MeasuredRun, calibrate
from pilotkit.decide.step_time import STARTING_EFFICIENCY, Efficiency, Rates, StepTime, estimate_step_time
from pilotkit.estimate.predict import Prediction, predict, work_of
from pilotkit.units import GIB

# conf/hardware/a100.yaml
A100 = Efficiency(matmul=0.75, attention=0.5, elementwise=0.8, link=0.7)
# Dense bf16 peak, memory and link bandwidth; between nodes 200 Gbit/s for each of eight devices are assumed, as no row
# states it.
DEVICES = {
    "A100 SXM 80GB": Rates(312e12, 2.039e12, 300e9, 5e-6),
    "A100 80GB": Rates(312e12, 2.039e12, 300e9, 5e-6),
    "A100 SXM4 40GB": Rates(312e12, 1.555e12, 300e9, 5e-6),
    "H100 SXM 96GB": Rates(989e12, 2.4e12, 450e9, 5e-6),
}
NETWORK = 8 * 25e9
NUM_PER_NODE = 8


def main(path: str, *questions: str) -> None:
    print(describe("torch", "pilotkit"))
    if absent():
        print(f"absent, not compared: {', '.join(absent())}")
    rows = read(path)
    asked = questions or ("memory", "speed")
    if "speed" not in asked:
        rows = [row for row in rows if row.memory or row.out_of_memory]
    found = []
    for row in rows:
        batch, seq_len = row.shape
        found.append((row, predict(row.workload(), micro_batch_size=batch, seq_len=seq_len)))
    if "memory" in asked:
        tell_memory([item for item in found if item[0].memory and item[0].is_sure], "Memory, fully specified")
        tell_memory([item for item in found if item[0].memory and not item[0].is_sure], "Memory, partly inferred")
        tell_verdicts([item for item in found if item[0].out_of_memory])
    if "speed" in asked:
        tell_speed([item for item in found if item[0].tokens_per_second])


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
    _tell_errors("ours", [line[0] for line in lines])
    for name in ("llm-analysis", "DeepSpeed", "Accelerate"):
        _tell_errors(name, [line[5][name] / line[3] - 1 for line in lines if name in line[5]])


def held(prediction: Prediction, kind: str) -> float:
    """GiB of what the row reports; published reserved figures come from expandable segments."""
    return (prediction.expandable.peak_reserved_bytes if kind == "reserved" else prediction.peak_allocated_bytes) / GIB


def tell_verdicts(found: Sequence[tuple[Published, Prediction]]) -> None:
    """Published failures: 79.1 GiB of an A100, 95 GiB of that H100."""
    print(f"\nPublished as out of memory: {len(found)} rows")
    for row, prediction in found:
        limit = 95.0 if row.row["gpu"].startswith("H100") else 39.4 if "40GB" in row.row["gpu"] else 79.1
        needed = prediction.expandable.peak_reserved_bytes / GIB
        print(f"{words(row)} estimated {needed:6.2f} GiB of {limit}: {'fits' if needed < limit else 'does not fit'}")


def tell_speed(found: Sequence[tuple[Published, Prediction]]) -> None:
    lines: list[tuple[Published, StepTime, float, str]] = []
    for row, prediction in found:
        device = next((name for name in DEVICES if row.row["gpu"].startswith(name)), None)
        if device is None or row.tokens_per_second is None:
            continue
        batch, seq_len = row.shape
        tokens = batch * seq_len * row.grad_accum_steps
        lines.append((row, _time(row, prediction, DEVICES[device]), tokens / row.tokens_per_second, device))
    default = [time.step_seconds / seconds - 1 for _, time, seconds, _ in lines]
    print(f"\nSpeed: {len(lines)} rows, time of a step")
    calibrated: list[float] = []
    order = sorted(range(len(lines)), key=lambda number: -abs(default[number]))
    for number in order:
        row, time, seconds, device = lines[number]
        source = row.row["source_locator"]
        others = [
            MeasuredRun(other.row["id"], raw, true, None, None, None)
            for other, raw, true, where in lines
            if where.split()[0] == device.split()[0] and other.row["source_locator"] != source
        ]
        text = "no calibration: fewer than three rows of other sources"
        if len(others) >= 3:
            error = calibrate(others).step(time).step_seconds / seconds - 1
            calibrated.append(error)
            text = f"calibrated by {len(others)} rows of other sources {100 * error:+.1f} %"
        guess = f"estimated {time.step_seconds:6.2f} {100 * default[number]:+5.1f} %"
        print(f"{words(row)} {seconds:6.2f} s, {guess}   {text}")
    _tell_errors("starting efficiencies", default)
    _tell_errors("calibrated, held-out sources", calibrated)


def _time(row: Published, prediction: Prediction, rates: Rates) -> StepTime:
    crosses = row.num_devices > NUM_PER_NODE
    slowest = Rates(rates.peak_flops, rates.memory_bandwidth, NETWORK if crosses else rates.link_bandwidth, 5e-6)
    return estimate_step_time(
        work_of(prediction.trace),
        rates=slowest,
        gradient_bytes=prediction.static.get("buckets", 0),
        dp_replicate=row.num_devices,
        efficiency=A100 if row.row["gpu"].startswith("A100") else STARTING_EFFICIENCY,
    )


def words(row: Published) -> str:
    values: dict[str, Any] = dict(row.row)
    batch, seq_len = row.shape
    name = f"{values['model'][:14]}, {values['parallelism'].split()[0]} {row.num_devices}, {values['activation_ckpt']}"
    return f"{values['id']:<14}{name:<44}{batch:>3} x {seq_len:<6}"


def _tell_errors(name: str, errors: Sequence[float]) -> None:
    if errors:
        sizes = [abs(error) for error in errors]
        within: Callable[[float], int] = lambda limit: sum(size <= limit for size in sizes)  # noqa: E731
        print(
            f"{name}: median {100 * statistics.median(sizes):.1f} %, worst {100 * max(sizes):.1f} % "
            f"({within(0.03)} of {len(sizes)} within 3 %, {within(0.10)} within 10 %)"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
