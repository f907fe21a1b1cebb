"""Step time from what a step computes, moves and sends: a roofline by class of operator. Pure arithmetic.

Called by stage `estimate` with the worker's sums, and by `calibration`, which corrects it by what was measured. Compute
and communication overlap somewhere between fully (the lower edge) and not at all (the upper edge).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COMMUNICATION, LAUNCH = "communication", "launch"
CLASSES = ("matmul", "attention", "elementwise", LAUNCH, COMMUNICATION)
# Bytes that a ring moves over the slowest link for one byte of the gathered or reduced tensor, times (n - 1) / n.
RING_FACTORS = {"allreduce": 2.0}


@dataclass(frozen=True)
class Efficiency:
    """Share of the peak that a class of operators reaches, 0 to 1."""

    matmul: float
    attention: float
    elementwise: float
    """Of memory bandwidth."""
    link: float
    """Of the bandwidth between devices."""


# From H100 runs with published speeds: benchmarks/estimate_speed.py, docs/estimate.md.
STARTING_EFFICIENCY = Efficiency(matmul=0.63, attention=0.2, elementwise=0.71, link=0.7)


@dataclass(frozen=True)
class Rates:
    """What a device can do at best: FLOP/s of the precision, bytes per second, and seconds to launch a kernel.

    `launches_ahead`: the host runs ahead of an accelerator, so that launches cost time only where they outlast the
    kernels; a processor launches and computes by turns.
    """

    peak_flops: float
    memory_bandwidth: float
    link_bandwidth: float
    kernel_seconds: float = 0.0
    launches_ahead: bool = True


# Stands in for a processor, for which no option gives peaks. Its figures mean nothing until a measured run corrects
# them.
REFERENCE_PROCESSOR = Rates(1e11, 2e10, 1e10, kernel_seconds=1e-5, launches_ahead=False)


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step of one rank."""

    parts: dict[str, float]
    """Seconds by class, each of CLASSES."""
    num_flops: float
    launches_ahead: bool = True

    @property
    def compute_seconds(self) -> float:
        device = sum(seconds for name, seconds in self.parts.items() if name not in (COMMUNICATION, LAUNCH))
        host = self.parts.get(LAUNCH, 0.0)
        return max(device, host) if self.launches_ahead else device + host

    @property
    def low_seconds(self) -> float:
        """Communication hidden as far as compute reaches."""
        return max(self.compute_seconds, self.parts[COMMUNICATION])

    @property
    def high_seconds(self) -> float:
        """Nothing hidden."""
        return self.compute_seconds + self.parts[COMMUNICATION]

    @property
    def step_seconds(self) -> float:
        """The middle of the band."""
        return (self.low_seconds + self.high_seconds) / 2


def estimate_step_time(
    work: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    rates: Rates,
    gradient_bytes: float,
    dp_replicate: int,
    efficiency: Efficiency,
) -> StepTime:
    """`work` is `estimate.predict.work_of`.

    `gradient_bytes` are all-reduced over `dp_replicate` ranks where the trace has no such collective (DDP). A kernel of
    the matmul and attention classes takes the time of its arithmetic and of its traffic, one after the other: a kernel
    fills and drains its tiles, and the narrower a matrix, the more of its time that is. Published steps of models from
    125 million to 70 billion parameters lie closer to this sum than to the larger of the two. Every other kernel is
    bound by memory.
    """
    parts = {"matmul": 0.0, "attention": 0.0, "elementwise": 0.0}
    num_flops = 0.0
    for line in work["kernels"]:
        kind = line["kind"]
        parts[kind] += line["num_bytes"] / (rates.memory_bandwidth * efficiency.elementwise)
        if kind != "elementwise":
            share = efficiency.matmul if kind == "matmul" else efficiency.attention
            parts[kind] += line["num_flops"] / (rates.peak_flops * share)
            num_flops += line["num_flops"]
    parts[LAUNCH] = rates.kernel_seconds * sum(line["num_kernels"] for line in work["kernels"])
    sent = [(line["name"], line["num_bytes"], line["num_ranks"]) for line in work["collectives"]]
    if gradient_bytes:
        sent.append(("allreduce", gradient_bytes, dp_replicate))
    rate = rates.link_bandwidth * efficiency.link
    parts[COMMUNICATION] = sum(
        _factor(name) * num_bytes * (num_ranks - 1) / num_ranks / rate for name, num_bytes, num_ranks in sent
    )
    return StepTime(parts, num_flops, rates.launches_ahead)


def _factor(name: str) -> float:
    return next((factor for word, factor in RING_FACTORS.items() if word in name), 1.0)
