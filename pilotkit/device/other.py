"""An accelerator that torch.cuda does not reach, in a script of the user's own."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from pilotkit.device.interface import DeviceType, MemoryReading


@dataclass(frozen=True)
class OtherDevice:
    """An accelerator that pilotkit plans no runs for (Apple's `mps`, Intel's `xpu`), in a script of the user's own that
    a meter watches: it is waited for, and what its allocator tells is read."""

    name: str
    torch_device: torch.device
    backend: str = ""
    float8_problem: str = "float8 matrix products are known of NVIDIA's and AMD's devices alone"
    vendor: DeviceType = "cpu"
    pci_address: str | None = None

    def synchronize(self) -> None:
        module_of(self.torch_device).synchronize()

    def reset_peak(self) -> None:
        reset = getattr(module_of(self.torch_device), "reset_peak_memory_stats", None)
        if reset is not None:
            reset()

    def memory(self) -> MemoryReading:
        module = module_of(self.torch_device)

        def read(name: str) -> int | None:
            ask = getattr(module, name, None)
            return None if ask is None else int(ask())

        return MemoryReading(
            allocated_bytes=read("memory_allocated"),
            peak_allocated_bytes=read("max_memory_allocated"),
            peak_reserved_bytes=read("max_memory_reserved"),
        )


@functools.cache
def other_accelerator() -> torch.device | None:
    """The accelerator that torch.cuda does not reach, where this torch has one and it is here."""
    if not torch.accelerator.is_available():
        return None
    found = torch.accelerator.current_accelerator()
    return None if found is None or found.type == "cuda" else torch.device(found.type)


def is_used(device: torch.device) -> bool:
    """One that does not tell (mps) is waited for in any case, which costs nothing where there is no work."""
    return bool(getattr(module_of(device), "is_initialized", lambda: True)())


def module_of(device: torch.device) -> Any:
    return torch.get_device_module(device)
