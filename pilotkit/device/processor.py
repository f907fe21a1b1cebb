"""The processor, and the memory limit that stands in for an accelerator's on it."""

from __future__ import annotations

import functools
import re
import resource
from dataclasses import dataclass
from pathlib import Path

import torch

from pilotkit.device.interface import DeviceError, DeviceType, MemoryReading
from pilotkit.units import KIB, format_bytes


@dataclass(frozen=True)
class CpuDevice:
    """The processor. It has no allocator statistics: `pilotkit.meter.memory` counts live tensors instead."""

    name: str
    torch_device: torch.device
    backend: str = "gloo"
    float8_problem: str = "a processor has no float8 matrix products"
    vendor: DeviceType = "cpu"
    pci_address: str | None = None

    def synchronize(self) -> None:
        return None

    def reset_peak(self) -> None:
        return None

    def memory(self) -> MemoryReading:
        return MemoryReading()


@functools.cache
def this_processor() -> CpuDevice:
    """Looked up once a process: a meter asks for the device at both edges of a step."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return CpuDevice(found[1].strip() if found else "cpu", torch.device("cpu"))


def start_cpu_threads() -> None:
    """Start the threads and the lazily loaded parts of torch that a training step needs, before memory is limited.

    Runs forward, backward and optimizer step of a small product in float32 and bfloat16. Both the matrix library and
    torch's own element-wise loops must enter their parallel regions, so the size is above torch's grain of 32768
    elements; the first optimizer imports some 60 MiB of torch's modules.
    """
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.ones(256, 256, dtype=dtype, requires_grad=True)
        inputs = torch.ones(256, 256, dtype=dtype)
        torch.autograd.backward(torch.nn.functional.gelu(inputs @ weight).sum())
        torch.optim.AdamW([weight]).step()


def limit_cpu_memory(limit_bytes: int) -> None:
    """Let this process allocate `limit_bytes` more than it holds now; beyond that, allocation fails with an error.

    Sets the soft RLIMIT_DATA, which on Linux covers private writable memory. Call it after `start_cpu_threads`:
    a thread that cannot get its stack ends the process, and a module that cannot be loaded raises SystemError.
    What starts or is imported later counts against the limit too. Raises DeviceError when the hard limit is lower.
    """
    assert limit_bytes > 0, limit_bytes
    wanted = _vm_data_bytes() + limit_bytes
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise DeviceError(
            f"a memory limit of {format_bytes(limit_bytes)} was asked for, but this process may hold only "
            f"{format_bytes(hard)} in all; raise the hard limit (ulimit -Hd) or lower hardware.memory_bytes"
        )
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _vm_data_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * KIB
    raise DeviceError("this system does not say how much memory a process holds (no VmData in /proc/self/status)")
