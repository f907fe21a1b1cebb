"""NVIDIA's and AMD's devices, both through torch.cuda, and what this torch sees of them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch

from pilotkit.device.interface import DeviceType, MemoryReading

FLOAT8_CAPABILITY = (8, 9)
FLOAT8_ARCHS = ("gfx942", "gfx950", "gfx1200", "gfx1201")


@dataclass(frozen=True)
class AcceleratorDevice:
    """One NVIDIA or AMD device, reached through torch.cuda on both."""

    name: str
    torch_device: torch.device
    backend: str = "nccl"

    @property
    def float8_problem(self) -> str:
        properties: Any = torch.cuda.get_device_properties(self.torch_device)
        capability = (properties.major, properties.minor)
        arch = str(getattr(properties, "gcnArchName", "")).partition(":")[0] if torch.version.hip else ""
        return float8_problem_of(capability=capability, arch=arch)

    @property
    def vendor(self) -> DeviceType:
        return "rocm" if torch.version.hip else "cuda"

    @property
    def pci_address(self) -> str | None:
        found: Any = torch.cuda.get_device_properties(self.torch_device)
        if not hasattr(found, "pci_bus_id"):  # a torch that does not tell
            return None
        return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def memory(self) -> MemoryReading:
        free_bytes, total_bytes = torch.cuda.mem_get_info(self.torch_device)
        return MemoryReading(
            allocated_bytes=torch.cuda.memory_allocated(self.torch_device),
            peak_allocated_bytes=torch.cuda.max_memory_allocated(self.torch_device),
            peak_reserved_bytes=torch.cuda.max_memory_reserved(self.torch_device),
            device_used_bytes=total_bytes - free_bytes,
            device_total_bytes=total_bytes,
            num_alloc_retries=int(torch.cuda.memory_stats(self.torch_device).get("num_alloc_retries", 0)),
        )


def float8_problem_of(*, capability: tuple[int, int], arch: str) -> str:
    """`arch` is AMD's name of an architecture, empty on NVIDIA. As torch._scaled_mm asks for (torch 2.13)."""
    if arch:
        return "" if arch in FLOAT8_ARCHS else f"{arch} has no float8 matrix products, {', '.join(FLOAT8_ARCHS)} have"
    if capability >= FLOAT8_CAPABILITY:
        return ""
    asked = ".".join(map(str, FLOAT8_CAPABILITY))
    return f"compute capability {'.'.join(map(str, capability))} has no float8 matrix products, {asked} and above have"


def built_for() -> str:
    if torch.version.hip is not None:
        return "rocm"
    return "cuda" if torch.version.cuda is not None else "cpu"


def count_devices() -> int:
    # torch warns when a driver is missing or too old; the count of 0 says what matters here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.cuda.device_count()


def visible_devices() -> str:
    count = count_devices()
    if count == 0:
        return "no device is visible"
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(count))
    return f"{count} visible: {names}"
