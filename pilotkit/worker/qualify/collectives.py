"""Collectives across the ranks, each checked by value, and the speed of the one that training waits for.

Called by phase `qualify_ranks` on every rank alike. Values are small whole numbers, exact in every dtype.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pilotkit.device import Device
from pilotkit.worker.qualify.rows import FAIL, NOT_RUN, PASS, Row, words_of

NUMEL = 12
NEEDED = {
    "single": (),
    "ddp": ("all_reduce", "broadcast"),
    "fsdp": ("all_gather", "reduce_scatter", "all_reduce"),
    "hsdp": ("all_gather", "reduce_scatter", "all_reduce"),
}


def check_collectives(device: Device, *, strategy: str, dtype: torch.dtype) -> list[Row]:
    """One row a collective. One that the strategy does not need may be missing from the library."""
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = []
    for name, call in _CALLS.items():
        needed = name in NEEDED[strategy]
        subject = f"{name} {str(dtype).removeprefix('torch.')}"
        try:
            got, expected = call(device.torch_device, dtype, rank, world)
        except (RuntimeError, ValueError, TypeError) as error:
            verdict = FAIL if needed else NOT_RUN
            words = "" if needed else f", which strategy {strategy} does not use"
            rows.append(Row("collective", subject, verdict, f"{words_of(error)}{words}"))
            continue
        same = torch.tensor([float(torch.equal(got, expected))], device=device.torch_device)
        dist.all_reduce(same)
        if int(same.item()) == world:
            rows.append(Row("collective", subject, PASS, f"right on {world} ranks"))
        else:
            rows.append(
                Row("collective", subject, FAIL, f"wrong values on {world - int(same.item())} of {world} ranks")
            )
    return rows


def all_reduce_bytes_per_second(device: Device, *, num_bytes: int, repeats: int = 5) -> float:
    """Bus bandwidth of the best of `repeats`: 2 (n - 1) / n of the bytes cross a link (NCCL tests, PERFORMANCE.md)."""
    world = dist.get_world_size()
    data = torch.zeros(num_bytes // 4, device=device.torch_device)
    best = float("inf")
    for _ in range(repeats + 1):
        dist.barrier()
        device.synchronize()
        started = time.perf_counter()
        dist.all_reduce(data)
        device.synchronize()
        best = min(best, time.perf_counter() - started)
    return 2 * (world - 1) / world * num_bytes / best


def _named(name: str, before: str) -> Callable[..., Any]:
    """torch 2.13 gave these two new names and warns of the old ones."""
    found: Callable[..., Any] = getattr(dist, name, None) or getattr(dist, before)
    return found


def _ramp(device: torch.device, dtype: torch.dtype, numel: int = NUMEL) -> Tensor:
    return torch.arange(numel, device=device).to(dtype)


def _all_reduce(device: torch.device, dtype: torch.dtype, rank: int, world: int) -> tuple[Tensor, Tensor]:
    value = _ramp(device, dtype) * (rank + 1)
    dist.all_reduce(value)
    return value, _ramp(device, dtype) * (world * (world + 1) // 2)


def _broadcast(device: torch.device, dtype: torch.dtype, rank: int, world: int) -> tuple[Tensor, Tensor]:
    value = _ramp(device, dtype) + rank
    dist.broadcast(value, src=world - 1)
    return value, _ramp(device, dtype) + (world - 1)


def _all_gather(device: torch.device, dtype: torch.dtype, rank: int, world: int) -> tuple[Tensor, Tensor]:
    gathered = torch.empty(world * NUMEL, device=device, dtype=dtype)
    _named("all_gather_single", "all_gather_into_tensor")(gathered, _ramp(device, dtype) + rank)
    return gathered, torch.cat([_ramp(device, dtype) + other for other in range(world)])


def _reduce_scatter(device: torch.device, dtype: torch.dtype, rank: int, world: int) -> tuple[Tensor, Tensor]:
    share = torch.empty(NUMEL, device=device, dtype=dtype)
    _named("reduce_scatter_single", "reduce_scatter_tensor")(share, _ramp(device, dtype, world * NUMEL))
    return share, _ramp(device, dtype, world * NUMEL)[rank * NUMEL : (rank + 1) * NUMEL] * world


def _all_to_all(device: torch.device, dtype: torch.dtype, rank: int, world: int) -> tuple[Tensor, Tensor]:
    got = torch.empty(world, device=device, dtype=dtype)
    dist.all_to_all_single(got, torch.full((world,), rank, device=device, dtype=dtype))
    return got, torch.arange(world, device=device).to(dtype)


_CALLS: dict[str, Callable[[torch.device, torch.dtype, int, int], tuple[Tensor, Tensor]]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}
