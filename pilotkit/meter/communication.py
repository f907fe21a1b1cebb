"""What communication costs in a step: total and exposed seconds, bytes and bandwidth of each kind of collective.

Read from a torch.profiler trace, of NCCL or RCCL kernels on an accelerator and of gloo's work on the CPU. Exposed is
what no computation hides: time in which a collective runs and no operator or kernel does. Called for a step of its own
after the timed ones, as profiling slows a step down. A collective also waits for the slowest rank; that is in its time.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

STEP = "pilotkit_step"
GLOO = "gloo:"
COLLECTIVE_KERNEL = re.compile(r"(?:nccl|rccl|msccl)\w*Kernel")
KERNEL_KIND = re.compile(r"_(AllReduce|AllGather|ReduceScatter|Broadcast|AllToAll|Reduce|SendRecv)(?=_|\W|$)")
# Beside a kernel torch writes which of its collectives launched it.
COLLECTIVE_NAME = "Collective name"
VARIANTS = ("_base", "_into_tensor", "_tensor", "_coalesced", "_oop")
SIZES = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "Float": 4, "Half": 2, "BFloat16": 2}
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
Interval = tuple[float, float]


@dataclass
class Collective:
    """All collectives of one kind in the step. `num_bytes` is what this rank put in; None where the trace is silent."""

    count: int = 0
    seconds: float = 0.0
    num_bytes: int | None = 0

    @property
    def bytes_per_second(self) -> float | None:
        """What went in over the time it took; the bus carries more, depending on the algorithm."""
        return self.num_bytes / self.seconds if self.num_bytes and self.seconds else None


@dataclass
class Communication:
    """One profiled step and its length. `total_seconds` counts collectives that overlap once."""

    step_seconds: float
    total_seconds: float
    exposed_seconds: float
    by_kind: dict[str, Collective] = field(default_factory=dict)


def profile_step(run_step: Callable[[], object], *, synchronize: Callable[[], None]) -> Communication:
    """Profile one step on this rank. All ranks have to run it at once."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    synchronize()
    profile = torch.profiler.profile(activities=activities, record_shapes=True, acc_events=True)
    with profile as profiler, torch.profiler.record_function(STEP):
        run_step()
        synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return read_trace(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])


def read_trace(events: Iterable[dict[str, Any]]) -> Communication:
    """Communication in the events of a Chrome trace; their times are microseconds."""
    whole = [event for event in events if event.get("ph") == "X" and "dur" in event]
    step = next((_interval(event) for event in whole if event["name"] == STEP), None)
    kernels = [event for event in whole if event.get("cat") in WORK]
    if kernels:
        communication = [event for event in kernels if _communicates(event)]
        computation = [event for event in kernels if not _communicates(event)]
    else:
        communication = [event for event in whole if event["name"].startswith(GLOO)]
        computation = [event for event in whole if event["name"].startswith("aten::")]
    covered = _union([_interval(event) for event in communication])
    busy = _union([_interval(event) for event in computation])
    by_kind: dict[str, Collective] = {}
    for event in communication:
        _add(by_kind.setdefault(_kind(event), Collective()), event)
    return Communication(
        step_seconds=(step[1] - step[0]) / 1e6 if step else 0.0,
        total_seconds=_length(covered) / 1e6,
        exposed_seconds=(_length(covered) - _overlap(covered, busy)) / 1e6,
        by_kind=by_kind,
    )


def _add(collective: Collective, event: dict[str, Any]) -> None:
    collective.count += 1
    collective.seconds += float(event["dur"]) / 1e6
    size = _num_bytes(event.get("args") or {})
    collective.num_bytes = None if size is None or collective.num_bytes is None else collective.num_bytes + size


def _num_bytes(args: dict[str, Any]) -> int | None:
    if "In msg nelems" in args:  # a kernel of NCCL or RCCL
        size = SIZES.get(str(args.get("dtype")))
        return int(args["In msg nelems"]) * size if size else None
    shapes, kinds = args.get("Input Dims"), args.get("Input type")
    if not shapes or not kinds:
        return None
    sizes = [SIZES.get(str(kind), 1) * math.prod(shape) for shape, kind in zip(shapes, kinds, strict=True) if shape]
    return int(sum(sizes))


def _communicates(kernel: dict[str, Any]) -> bool:
    return COLLECTIVE_NAME in (kernel.get("args") or {}) or COLLECTIVE_KERNEL.search(kernel["name"]) is not None


def _kind(event: dict[str, Any]) -> str:
    """`gloo:all_reduce` -> `all_reduce`; `ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(...)` -> `reduce_scatter`.

    RCCL runs every collective in one kernel (`ncclDevKernel_Generic_1`), and NCCL those that it was not built for:
    there torch's own name tells (`_allgather_base` -> `all_gather`), and without it the kind is `collective`.
    """
    name = str(event["name"])
    if name.startswith(GLOO):
        return name.removeprefix(GLOO)
    found = KERNEL_KIND.search(name)
    if found is not None:
        return re.sub(r"(?<!^)(?=[A-Z])", "_", found[1]).lower()
    told = str((event.get("args") or {}).get(COLLECTIVE_NAME, "")).strip("_")
    for variant in VARIANTS:
        told = told.replace(variant, "")
    return re.sub(r"^all(?=[a-z])", "all_", told) or "collective"


def _interval(event: dict[str, Any]) -> Interval:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def _union(intervals: Sequence[Interval]) -> list[Interval]:
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def _length(intervals: Sequence[Interval]) -> float:
    return sum(end - start for start, end in intervals)


def _overlap(one: Sequence[Interval], other: Sequence[Interval]) -> float:
    """Length that two unions have in common: both are sorted, so each is walked once."""
    total, i, j = 0.0, 0, 0
    while i < len(one) and j < len(other):
        total += max(min(one[i][1], other[j][1]) - max(one[i][0], other[j][0]), 0.0)
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return total
