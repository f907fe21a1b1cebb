"""Whether an estimate fits into a device, and what is added to what the allocator holds. Pure arithmetic over bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Overhead:
    """Memory that no trace sees: `lines` are (what, bytes)."""

    lines: list[dict[str, object]]

    @property
    def num_bytes(self) -> int:
        return sum(int(str(line["num_bytes"])) for line in self.lines)


@dataclass(frozen=True)
class Fit:
    """`needed_bytes` of the device against `allowed_bytes`."""

    needed_bytes: int
    allowed_bytes: int

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.allowed_bytes


def overhead_of(
    *, device_type: str, world_size: int, context_bytes: int, communication_bytes: int, workspace_bytes: int
) -> Overhead:
    """The processor has none of these; one rank alone has no communication buffers."""
    if device_type == "cpu":
        return Overhead([])
    lines: list[dict[str, object]] = [
        {"what": "device context and kernels", "num_bytes": context_bytes},
        {"what": "matrix library workspaces", "num_bytes": workspace_bytes},
    ]
    if world_size > 1:
        library = "RCCL" if device_type == "rocm" else "NCCL"
        lines.append({"what": f"{library} buffers", "num_bytes": communication_bytes})
    return Overhead(lines)


def judge_fit(needed_bytes: float, *, memory_bytes: int, headroom: float) -> Fit:
    """`needed_bytes` are the allocator's and the overhead; `headroom` is the share of the device that stays free."""
    return Fit(round(needed_bytes), int(memory_bytes * (1 - headroom)))
