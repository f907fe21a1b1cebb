"""The device of a worker process: opening it, its memory, and the limit that stands in for one on the CPU.

Called by the worker and by `pilotkit.meter`; the driver asks `describe_devices` in a process of its own.
The only room that touches torch.cuda. Never picks another device than the one asked for, and never
starts a process group.
"""

from pilotkit.device.accelerator import AcceleratorDevice
from pilotkit.device.description import describe_devices, describe_stack
from pilotkit.device.interface import Device, DeviceError, DeviceType, MemoryReading
from pilotkit.device.opening import current_device, open_device, synchronize_current
from pilotkit.device.other import OtherDevice
from pilotkit.device.processor import CpuDevice, limit_cpu_memory, start_cpu_threads

__all__ = [
    "AcceleratorDevice",
    "CpuDevice",
    "Device",
    "DeviceError",
    "DeviceType",
    "MemoryReading",
    "OtherDevice",
    "current_device",
    "describe_devices",
    "describe_stack",
    "limit_cpu_memory",
    "open_device",
    "start_cpu_threads",
    "synchronize_current",
]
