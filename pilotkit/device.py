"""The device of a worker process: opening it, its memory, and the limit that stands in for one on the CPU.

Called by the worker and by `pilotkit.meter`; the driver asks `describe_devices` in a process of its own.
The only file that touches torch.cuda. Never picks another device than the one asked for, and never
starts a process group.
"""

from __future__ import annotations

import functools
import re
import resource
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from pilotkit.errors import PilotkitError
from pilotkit.units import KIB, format_bytes

DeviceType = Literal["cpu", "cuda", "rocm"]


FLOAT8_CAPABILITY = (8, 9)
FLOAT8_ARCHS = ("gfx942", "gfx950", "gfx1200", "gfx1201")


class DeviceError(PilotkitError):
    """The device that was asked for is not here; says what was asked, which torch this is, and what is visible."""


@dataclass(frozen=True)
class MemoryReading:
    """One look at device memory, bytes; None where the device has no such number.

    `device_used_bytes` is everything on the device, other processes and the runtime's own context included.
    `num_alloc_retries` counts allocations that succeeded only after the cache had been given back.
    """

    allocated_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    device_total_bytes: int | None = None
    num_alloc_retries: int | None = None


class Device(Protocol):
    """What the worker needs of a device. `backend` is for its process group: `gloo` or `nccl` (RCCL's name too)."""

    @property
    def torch_device(self) -> torch.device: ...
    @property
    def name(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def float8_problem(self) -> str:
        """Why this device has no float8 matrix products; empty where it has."""

    @property
    def vendor(self) -> DeviceType:
        """Whose library knows more about it."""

    @property
    def pci_address(self) -> str | None:
        """As the vendors' libraries name it, `0000:3b:00.0`; None where there is none, or torch does not tell."""

    def synchronize(self) -> None:
        """Wait until everything that was launched is done."""

    def reset_peak(self) -> None:
        """Let the peaks of `memory` start again from what is held now."""

    def memory(self) -> MemoryReading:
        """Read memory now. Does not synchronise."""


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
        return _float8_problem(capability=capability, arch=arch)

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
        _module_of(self.torch_device).synchronize()

    def reset_peak(self) -> None:
        reset = getattr(_module_of(self.torch_device), "reset_peak_memory_stats", None)
        if reset is not None:
            reset()

    def memory(self) -> MemoryReading:
        module = _module_of(self.torch_device)

        def read(name: str) -> int | None:
            ask = getattr(module, name, None)
            return None if ask is None else int(ask())

        return MemoryReading(
            allocated_bytes=read("memory_allocated"),
            peak_allocated_bytes=read("max_memory_allocated"),
            peak_reserved_bytes=read("max_memory_reserved"),
        )


def open_device(device_type: DeviceType, *, local_rank: int) -> Device:
    """Open the device of this rank and make it the current one.

    `local_rank` indexes the visible devices; `cpu` ignores it. Raises DeviceError when this torch was not built
    for `device_type`, or when fewer than `local_rank + 1` devices are visible.
    """
    if device_type == "cpu":
        return _cpu()
    asked = f"{device_type} device {local_rank} was asked for"
    built_for = _built_for()
    if built_for != device_type:
        raise DeviceError(f"{asked}, but this is torch {torch.__version__}, built for {built_for}; {_visible()}")
    if local_rank >= _count():
        raise DeviceError(f"{asked} (torch {torch.__version__}, built for {built_for}), but {_visible()}")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return AcceleratorDevice(torch.cuda.get_device_name(device), device)


def current_device() -> Device:
    """The device this process already works on: the accelerator if it was used before, else the processor."""
    cuda: Any = torch.cuda  # is_initialized has no types
    if cuda.is_initialized():
        index = torch.cuda.current_device()
        return AcceleratorDevice(torch.cuda.get_device_name(index), torch.device("cuda", index))
    other = _other_accelerator()
    if other is not None and _is_used(other):
        ask = getattr(_module_of(other), "get_device_name", None)
        return OtherDevice(other.type if ask is None else str(ask()), other)
    return _cpu()


def synchronize_current() -> None:
    """Wait for the device this process already works on; the processor is never behind."""
    cuda: Any = torch.cuda  # is_initialized has no types
    if cuda.is_initialized():
        cuda.synchronize()
        return
    other = _other_accelerator()
    if other is not None and _is_used(other):
        _module_of(other).synchronize()


def describe_devices() -> dict[str, Any]:
    """What this torch is and sees, as plain JSON; never raises for a missing or broken driver.

    `torch`, `cuda`, `hip`: versions, None where torch was not built for it. `count`, and in visible order `names`,
    `total_bytes`, `uuids` (None where torch does not tell). `driver_count`: devices before any of the
    *_VISIBLE_DEVICES masks, None when the driver cannot be asked. `error`: why devices cannot be used, or None.
    """
    found: list[Any] = []
    error = None
    try:
        found = [torch.cuda.get_device_properties(index) for index in range(_count())]
    except (RuntimeError, AssertionError) as problem:  # torch asserts where it was built without a backend
        error = (str(problem).splitlines() or [type(problem).__name__])[0]
    uuids = [getattr(properties, "uuid", None) for properties in found]
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "count": len(found),
        "names": [str(properties.name) for properties in found],
        "total_bytes": [int(properties.total_memory) for properties in found],
        "uuids": [None if uuid is None else str(uuid) for uuid in uuids],
        "driver_count": _driver_count(),
        "error": error,
    }


def describe_stack() -> dict[str, Any]:
    """The software and the architecture under this process, as plain JSON: the members of a set that is qualified.

    `arch` is the device's own (`sm_90`, `gfx942`; None on the CPU), `built_for` those that this torch has kernels for.
    `collectives` is the version of NCCL or RCCL. What this build lacks is None.
    """
    stack: dict[str, Any] = {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": None,
        "collectives": None,
        "arch": None,
        "built_for": [],
    }
    if not _count():
        return stack
    cuda: Any = torch.cuda
    properties = cuda.get_device_properties(cuda.current_device())
    gcn = getattr(properties, "gcnArchName", "") if torch.version.hip else ""
    version = cuda.nccl.version() if torch.distributed.is_nccl_available() else ()
    stack |= {
        "cudnn": torch.backends.cudnn.version(),  # MIOpen's on AMD
        "collectives": ".".join(map(str, version)) or None,
        "arch": str(gcn).partition(":")[0] or f"sm_{properties.major}{properties.minor}",
        "built_for": list(cuda.get_arch_list()),
    }
    return stack


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


def _float8_problem(*, capability: tuple[int, int], arch: str) -> str:
    """`arch` is AMD's name of an architecture, empty on NVIDIA. As torch._scaled_mm asks for (torch 2.13)."""
    if arch:
        return "" if arch in FLOAT8_ARCHS else f"{arch} has no float8 matrix products, {', '.join(FLOAT8_ARCHS)} have"
    if capability >= FLOAT8_CAPABILITY:
        return ""
    asked = ".".join(map(str, FLOAT8_CAPABILITY))
    return f"compute capability {'.'.join(map(str, capability))} has no float8 matrix products, {asked} and above have"


def _built_for() -> str:
    if torch.version.hip is not None:
        return "rocm"
    return "cuda" if torch.version.cuda is not None else "cpu"


def _count() -> int:
    # torch warns when a driver is missing or too old; the count of 0 says what matters here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.cuda.device_count()


def _driver_count() -> int | None:
    """What NVML or AMD SMI count; they do not know the masks. torch has both without a public name."""
    vendor = {"cuda": "nvml", "rocm": "amdsmi"}.get(_built_for())
    ask = getattr(torch.cuda, f"_raw_device_count_{vendor}", None)
    if ask is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            count = int(ask())
    except OSError:  # the library is not on this machine
        return None
    return count if count >= 0 else None


def _visible() -> str:
    count = _count()
    if count == 0:
        return "no device is visible"
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(count))
    return f"{count} visible: {names}"


def _vm_data_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * KIB
    raise DeviceError("this system does not say how much memory a process holds (no VmData in /proc/self/status)")


@functools.cache
def _other_accelerator() -> torch.device | None:
    """The accelerator that torch.cuda does not reach, where this torch has one and it is here."""
    if not torch.accelerator.is_available():
        return None
    found = torch.accelerator.current_accelerator()
    return None if found is None or found.type == "cuda" else torch.device(found.type)


def _is_used(device: torch.device) -> bool:
    """One that does not tell (mps) is waited for in any case, which costs nothing where there is no work."""
    return bool(getattr(_module_of(device), "is_initialized", lambda: True)())


def _module_of(device: torch.device) -> Any:
    return torch.get_device_module(device)


@functools.cache
def _cpu() -> CpuDevice:
    """Looked up once a process: a meter asks for the device at both edges of a step."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return CpuDevice(found[1].strip() if found else "cpu", torch.device("cpu"))
