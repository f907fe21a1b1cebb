"""What the worker and the meter need of a device, whatever it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from pilotkit.errors import PilotkitError

DeviceType = Literal["cpu", "cuda", "rocm"]


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
