"""Who uses an accelerator's memory, as its driver tells it: NVML on NVIDIA, AMD SMI on AMD; both optional.

Called where a measurement says what else is on the device. The process numbers are those of the machine: in a container
our own may be missing, and then nobody's share can be told apart. Reads only; changes no setting, starts no process.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pilotkit.device import Device
from pilotkit.meter.device_memory import split_device_memory
from pilotkit.units import format_bytes


@dataclass(frozen=True)
class ProcessUse:
    """One process on the device; `used_bytes` is None where the driver does not tell (often without root)."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True)
class DeviceUse:
    """One look at a device, bytes. `source` is `nvml` or `amdsmi`."""

    source: str
    used_bytes: int
    total_bytes: int
    processes: tuple[ProcessUse, ...]

    def others(self, *, own_pid: int) -> tuple[ProcessUse, ...] | None:
        """Every process but ours; None when ours is not among them: the numbers are then of another name space."""
        if own_pid not in {process.pid for process in self.processes}:
            return None
        return tuple(process for process in self.processes if process.pid != own_pid)

    def others_bytes(self, *, own_pid: int) -> int | None:
        """What the others have together; None where it cannot be told."""
        others = self.others(own_pid=own_pid)
        if others is None or any(process.used_bytes is None for process in others):
            return None
        return sum(process.used_bytes or 0 for process in others)

    def describe(self) -> str:
        """`process 4711 (12.00 GiB), process 4712` for a message; empty without processes."""
        return ", ".join(
            f"process {process.pid}" + (f" ({format_bytes(process.used_bytes)})" if process.used_bytes else "")
            for process in self.processes
        )


def read_device_use(device: Device) -> DeviceUse | None:
    """Ask the library of the device's vendor. None for a processor, for a part of a device (MIG), where the library is
    not installed, and where it cannot answer; `Device.memory` still knows what is used in all."""
    address = device.pci_address
    reader = {"cuda": _read_nvml, "rocm": _read_amdsmi}.get(device.vendor)
    if reader is None or address is None:
        return None
    try:
        return reader(address)
    except _Unknown:
        return None


def device_memory_metrics(device: Device) -> dict[str, float]:
    """The three numbers of an accelerator's memory, what lies between them and what limits them, bytes.

    Peaks are those since the device's last reset. Empty on the processor, which counts nothing of this kind.
    """
    reading = device.memory()
    if reading.peak_allocated_bytes is None:
        return {}
    use = read_device_use(device)
    others = use.others_bytes(own_pid=own_pid()) if use else None
    used = use.used_bytes if use else reading.device_used_bytes
    found = {
        "peak_allocated_bytes": reading.peak_allocated_bytes,
        "peak_reserved_bytes": reading.peak_reserved_bytes,
        "device_used_bytes": used,
        "others_used_bytes": others,
        "num_alloc_retries": reading.num_alloc_retries,
        "memory_limit_bytes": reading.device_total_bytes,
    }
    if reading.peak_reserved_bytes is not None and used is not None:
        between = split_device_memory(
            allocated=reading.peak_allocated_bytes,
            reserved=reading.peak_reserved_bytes,
            used=used,
            # What came later; `measure` refuses a device that was not empty at the start.
            used_before=others or 0,
        )
        found.update(
            device_own_bytes=between.own_bytes,
            caching_bytes=between.caching_bytes,
            runtime_overhead_bytes=between.overhead_bytes,
        )
    return {name: float(value) for name, value in found.items() if value is not None}


def own_pid() -> int:
    """This process, as the driver would name it outside a container."""
    return os.getpid()


class _Unknown(Exception):
    """The library is not here, or has no answer."""


def _read_nvml(address: str) -> DeviceUse:
    nvml = _import("pynvml")
    with _Session(nvml.nvmlInit, nvml.nvmlShutdown, nvml.NVMLError):
        handle = nvml.nvmlDeviceGetHandleByPciBusId(address)
        if _is_split(nvml, handle):
            raise _Unknown
        # The second version: what the first calls used also holds what the driver keeps for itself.
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        processes = tuple(ProcessUse(int(process.pid), process.usedGpuMemory) for process in found)
        return DeviceUse("nvml", int(memory.used), int(memory.total), processes)


def _is_split(nvml: Any, handle: Any) -> bool:
    """Whether the device is divided into instances: its figures are then not those of the instance we run on."""
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:  # not a device that can be
        return False


def _read_amdsmi(address: str) -> DeviceUse:
    amd = _import("amdsmi")
    with _Session(amd.amdsmi_init, amd.amdsmi_shut_down, amd.AmdSmiException):
        handle = amd.amdsmi_get_processor_handle_from_bdf(address)
        vram = amd.AmdSmiMemoryType.VRAM
        used = int(amd.amdsmi_get_gpu_memory_usage(handle, vram))
        total = int(amd.amdsmi_get_gpu_memory_total(handle, vram))
        processes = []
        for process in amd.amdsmi_get_gpu_process_list(handle):
            size = process["memory_usage"]["vram_mem"]  # a number, or "N/A"
            processes.append(ProcessUse(int(process["pid"]), size if isinstance(size, int) else None))
        return DeviceUse("amdsmi", used, total, tuple(processes))


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # amdsmi raises KeyError or OSError where ROCm is not installed
        raise _Unknown from error


class _Session:
    """Between the library's start and its end; its own errors become `_Unknown`."""

    def __init__(self, start: Callable[[], object], end: Callable[[], object], error: type[Exception]) -> None:
        self._start = start
        self._end = end
        self._error = error

    def __enter__(self) -> None:
        try:
            self._start()
        except self._error as error:
            raise _Unknown from error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._end()
        if isinstance(error, self._error):
            raise _Unknown from error
