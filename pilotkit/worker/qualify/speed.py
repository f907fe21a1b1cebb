"""What the device really does: matrix products and copies, the best of a few. Called by the phases of `qualify`.

The best and not the median: what is asked is what this card can do, and a neighbour can only make it slower.
"""

from __future__ import annotations

import time

import torch

from pilotkit.device import Device

REPEATS = 5
SECONDS = 1.0


def matmul_flops_per_second(device: Device, *, dtype: torch.dtype) -> float:
    """Dense square product: 2 n^3 operations. n is 8192 on an accelerator and 512 on the CPU."""
    size = 512 if device.torch_device.type == "cpu" else 8192
    left, right = (torch.randn(size, size, device=device.torch_device).to(dtype) for _ in range(2))
    return 2 * size**3 / _best(device, lambda: left @ right)


def copy_bytes_per_second(device: Device) -> float:
    """A copy on the device, read and written: 1 GiB each on an accelerator, 64 MiB on the CPU."""
    numel = (1 << 24) if device.torch_device.type == "cpu" else (1 << 28)
    source = torch.ones(numel, device=device.torch_device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _best(device, lambda: target.copy_(source))


def _best(device: Device, work: object) -> float:
    """Seconds of the fastest of some repeats, the first one apart."""
    assert callable(work)
    work()
    device.synchronize()
    best, began = float("inf"), time.perf_counter()
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        device.synchronize()
        now = time.perf_counter()
        best = min(best, now - started)
        if now - began > SECONDS:
            break
    return best
