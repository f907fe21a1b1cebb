"""Three numbers of device memory side by side, and what lies between them.

`allocated` is what tensors take, `reserved` what the caching allocator holds for them, `used` what everybody has taken
of the device. Called wherever a reading becomes figures. Reads no device: it is handed the numbers, all in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from pilotkit.errors import PilotkitError
from pilotkit.units import format_bytes


class DeviceBusy(PilotkitError):
    """Somebody else's memory is on the device: a peak measured beside it says nothing about a whole device."""


@dataclass(frozen=True)
class DeviceMemory:
    """What one process has of one device at its peak, bytes.

    `own_bytes` decides whether a run fits: used by all, less `others_bytes`, which was in use before this process
    began. `caching_bytes` is reserved and not allocated; part of it is fragmentation. `overhead_bytes` is own and not
    reserved: the context, libraries, communication buffers; never below 0.
    """

    own_bytes: int
    caching_bytes: int
    overhead_bytes: int
    others_bytes: int


def split_device_memory(*, allocated: int, reserved: int, used: int, used_before: int) -> DeviceMemory:
    """Tell apart what lies between the three numbers. `used_before`: in use before this process touched the device."""
    own = max(used - used_before, 0)
    return DeviceMemory(
        own_bytes=own,
        caching_bytes=reserved - allocated,
        overhead_bytes=max(own - reserved, 0),
        others_bytes=used_before,
    )


def refuse_busy_device(name: str, *, used_bytes: int, allowed_bytes: int, users: str = "") -> None:
    """Raise DeviceBusy when more is in use at the start than `allowed_bytes`, this process's own context included.

    `users` names who is on the device, where its driver tells.
    """
    if used_bytes > allowed_bytes:
        raise DeviceBusy(
            f"{name} is not empty: {format_bytes(used_bytes)} were in use before anything was built "
            f"(allowed are {format_bytes(allowed_bytes)}, for this process's own context"
            f"{f'; on it are {users}' if users else ''}). End what runs there, or "
            "raise measure.max_used_before_bytes if its memory will be there in the long run, too"
        )
