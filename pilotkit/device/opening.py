"""Opening the device that was asked for, and finding the one this process already works on."""

from __future__ import annotations

from typing import Any

import torch

from pilotkit.device.accelerator import AcceleratorDevice, built_for, count_devices, visible_devices
from pilotkit.device.interface import Device, DeviceError, DeviceType
from pilotkit.device.other import OtherDevice, is_used, module_of, other_accelerator
from pilotkit.device.processor import this_processor


def open_device(device_type: DeviceType, *, local_rank: int) -> Device:
    """Open the device of this rank and make it the current one.

    `local_rank` indexes the visible devices; `cpu` ignores it. Raises DeviceError when this torch was not built
    for `device_type`, or when fewer than `local_rank + 1` devices are visible.
    """
    if device_type == "cpu":
        return this_processor()
    asked = f"{device_type} device {local_rank} was asked for"
    built = built_for()
    if built != device_type:
        raise DeviceError(f"{asked}, but this is torch {torch.__version__}, built for {built}; {visible_devices()}")
    if local_rank >= count_devices():
        raise DeviceError(f"{asked} (torch {torch.__version__}, built for {built}), but {visible_devices()}")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return AcceleratorDevice(torch.cuda.get_device_name(device), device)


def current_device() -> Device:
    """The device this process already works on: the accelerator if it was used before, else the processor."""
    cuda: Any = torch.cuda  # is_initialized has no types
    if cuda.is_initialized():
        index = torch.cuda.current_device()
        return AcceleratorDevice(torch.cuda.get_device_name(index), torch.device("cuda", index))
    other = other_accelerator()
    if other is not None and is_used(other):
        ask = getattr(module_of(other), "get_device_name", None)
        return OtherDevice(other.type if ask is None else str(ask()), other)
    return this_processor()


def synchronize_current() -> None:
    """Wait for the device this process already works on; the processor is never behind."""
    cuda: Any = torch.cuda  # is_initialized has no types
    if cuda.is_initialized():
        cuda.synchronize()
        return
    other = other_accelerator()
    if other is not None and is_used(other):
        module_of(other).synchronize()
