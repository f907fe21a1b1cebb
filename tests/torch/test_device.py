"""Opening a device, describing it, and the CPU's memory limit."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pilotkit.device import (
    AcceleratorDevice,
    CpuDevice,
    DeviceError,
    MemoryReading,
    current_device,
    describe_devices,
    limit_cpu_memory,
    open_device,
    synchronize_current,
)
from pilotkit.device.other import other_accelerator

GIB = 1024**3


@pytest.fixture
def fake_accelerator(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """torch as built for CUDA, with two devices; returns the list of what was asked of them."""
    asked: list[Any] = []
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index=None: "Accelerator X")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: asked.append(("set_device", device)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: asked.append(("synchronize", device)))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: asked.append(("reset", device)))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 2)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 3)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {"num_alloc_retries": 4})
    return asked


def test_cpu_device_has_a_name_and_no_allocator_numbers() -> None:
    device = open_device("cpu", local_rank=3)
    assert isinstance(device, CpuDevice)
    assert (device.torch_device, device.backend) == (torch.device("cpu"), "gloo")
    assert device.name
    device.synchronize()
    device.reset_peak()
    assert device.memory() == MemoryReading(None, None, None, None, None, None)
    assert current_device() == device


def test_accelerator_becomes_the_current_device(fake_accelerator: list[Any]) -> None:
    device = open_device("cuda", local_rank=1)
    assert device == AcceleratorDevice("Accelerator X", torch.device("cuda", 1), "nccl")
    device.synchronize()
    device.reset_peak()
    second = torch.device("cuda", 1)
    assert fake_accelerator == [("set_device", second), ("synchronize", second), ("reset", second)]
    assert device.memory() == MemoryReading(
        allocated_bytes=1,
        peak_allocated_bytes=2,
        peak_reserved_bytes=3,
        device_used_bytes=20 * GIB,
        device_total_bytes=80 * GIB,
        num_alloc_retries=4,
    )


@pytest.mark.parametrize("used", [True, False])
def test_other_accelerators_are_waited_for(used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A meter in a script on Apple's or Intel's devices: steps would be timed where they are launched."""
    asked: list[str] = []
    module = SimpleNamespace(
        synchronize=lambda: asked.append("synchronize"),
        is_initialized=lambda: used,
        get_device_name=lambda: "Other X",
        max_memory_allocated=lambda: 7,
    )
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    other_accelerator.cache_clear()
    try:
        synchronize_current()
        device = current_device()
    finally:
        other_accelerator.cache_clear()
    assert (device.name == "Other X") is used
    assert asked == ["synchronize"] * used
    assert device.memory().peak_allocated_bytes == (7 if used else None)
    device.synchronize()
    device.reset_peak()
    assert asked == ["synchronize"] * 2 * used


def test_rocm_is_reached_through_cuda(fake_accelerator: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert open_device("rocm", local_rank=0).torch_device == torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("cuda", "hip", "count", "device_type", "local_rank", "message"),
    [
        pytest.param(
            None,
            None,
            0,
            "cuda",
            0,
            "cuda device 0 was asked for, but this is torch 2.0, built for cpu; no device is visible",
            id="cuda on a CPU build",
        ),
        pytest.param(
            "12.8",
            None,
            2,
            "rocm",
            0,
            "rocm device 0 was asked for, but this is torch 2.0, built for cuda; "
            "2 visible: Accelerator X, Accelerator X",
            id="rocm on an NVIDIA build",
        ),
        pytest.param(
            None,
            "6.4",
            1,
            "cuda",
            0,
            "cuda device 0 was asked for, but this is torch 2.0, built for rocm; 1 visible: Accelerator X",
            id="cuda on an AMD build",
        ),
        pytest.param(
            "12.8",
            None,
            1,
            "cuda",
            1,
            "cuda device 1 was asked for (torch 2.0, built for cuda), but 1 visible: Accelerator X",
            id="rank past the last device",
        ),
        pytest.param(
            "12.8",
            None,
            0,
            "cuda",
            0,
            "cuda device 0 was asked for (torch 2.0, built for cuda), but no device is visible",
            id="no device",
        ),
    ],
)
@pytest.mark.usefixtures("fake_accelerator")
def test_a_device_that_is_not_here_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    cuda: str | None,
    hip: str | None,
    count: int,
    device_type: Any,
    local_rank: int,
    message: str,
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.0")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(DeviceError) as raised:
        open_device(device_type, local_rank=local_rank)
    assert str(raised.value) == message


@pytest.mark.usefixtures("fake_accelerator")
def test_describe_devices_is_plain_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.0")
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: 8)
    properties = [
        SimpleNamespace(name="Accelerator X", total_memory=80 * GIB, uuid="abc"),
        SimpleNamespace(name="Accelerator Y", total_memory=40 * GIB),
    ]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties[index])
    described = describe_devices()
    assert json.loads(json.dumps(described)) == {
        "torch": "2.0",
        "cuda": "12.8",
        "hip": None,
        "count": 2,
        "names": ["Accelerator X", "Accelerator Y"],
        "total_bytes": [80 * GIB, 40 * GIB],
        "uuids": ["abc", None],
        "driver_count": 8,
        "error": None,
    }


@pytest.mark.usefixtures("fake_accelerator")
def test_describe_devices_tells_a_broken_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(index: int) -> None:
        raise RuntimeError("CUDA driver is too old\nsecond line")

    def no_library() -> int:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    monkeypatch.setattr(torch.cuda, "get_device_properties", broken)
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", no_library)
    described = describe_devices()
    assert (described["count"], described["names"], described["driver_count"]) == (0, [], None)
    assert described["error"] == "CUDA driver is too old"


LIMITED = """
import json, sys, torch
from pilotkit.device import limit_cpu_memory, start_cpu_threads
from pilotkit.meter import is_out_of_memory
torch.set_num_threads(2)
start_cpu_threads()
limit_cpu_memory(32 * 1024**2)
found = []
try:
    torch.empty(64 * 1024**2, dtype=torch.uint8)
except RuntimeError as error:
    found.append(is_out_of_memory(error).requested_bytes)
try:
    bytearray(64 * 1024**2)
except MemoryError as error:
    found.append(is_out_of_memory(error).text)
weight = torch.ones(600, 600, requires_grad=True)
(weight @ weight).relu().sum().backward()
found.append(weight.grad.sum().item())
print(json.dumps(found))
"""


def test_limit_makes_allocation_fail_and_leaves_the_process_usable() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # The gradient of sum(W W) for W of ones is 2 * 600 everywhere: 600 * 600 * 1200.
    assert json.loads(done.stdout) == [64 * 1024**2, "MemoryError", 432_000_000.0]


def test_limit_above_the_hard_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (64 * GIB, 64 * GIB))
    with pytest.raises(DeviceError) as raised:
        limit_cpu_memory(1024 * GIB)
    assert str(raised.value) == (
        "a memory limit of 1.00 TiB was asked for, but this process may hold only 64.00 GiB in all; raise the hard "
        "limit (ulimit -Hd) or lower hardware.memory_bytes"
    )
