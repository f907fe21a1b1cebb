"""Who is on a device, from the forms in which NVML and AMD SMI answer.

Recorded: names, types and units are those of nvidia-ml-py 13 (its own structures are used) and of amdsmi 7, from their
documentation; figures are made up. Nothing here has asked a driver.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from pilotkit.device import current_device
from pilotkit.meter.device_memory import DeviceBusy, refuse_busy_device
from pilotkit.meter.device_use import ProcessUse, read_device_use
from pilotkit.units import GIB

ADDRESS = "0000:3b:00.0"


@dataclass(frozen=True)
class Accelerator:
    """What `read_device_use` asks of a device."""

    vendor: str
    pci_address: str | None = ADDRESS


class NvmlError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The real module with recorded answers in place of the driver's."""
    import pynvml

    memory = pynvml.c_nvmlMemory_v2_t(
        version=pynvml.nvmlMemory_v2, total=80 * GIB, reserved=GIB // 2, free=67 * GIB, used=13 * GIB
    )
    processes = [
        pynvml.nvmlStructToFriendlyObject(pynvml.c_nvmlProcessInfo_v3_t(pid=pid, usedGpuMemory=size))
        for pid, size in ((11, 10 * GIB), (12, 2 * GIB))
    ]
    calls: list[str] = []
    answers = {
        "nvmlInit": lambda: calls.append("init"),
        "nvmlShutdown": lambda: calls.append("end"),
        "nvmlDeviceGetHandleByPciBusId": lambda address: calls.append(address) or "handle",
        "nvmlDeviceGetMigMode": lambda handle: [0, 0],
        "nvmlDeviceGetMemoryInfo": lambda handle, version: {pynvml.nvmlMemory_v2: memory}[version],
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: processes,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    pynvml.calls = calls
    yield pynvml
    del pynvml.calls


def test_nvml(nvml: Any) -> None:
    found = read_device_use(Accelerator("cuda"))  # type: ignore[arg-type]
    assert found is not None
    assert (found.source, found.used_bytes, found.total_bytes) == ("nvml", 13 * GIB, 80 * GIB)
    assert found.processes == (ProcessUse(11, 10 * GIB), ProcessUse(12, 2 * GIB))
    assert nvml.calls == ["init", ADDRESS, "end"]
    assert found.others(own_pid=11) == (ProcessUse(12, 2 * GIB),)
    assert found.others_bytes(own_pid=11) == 2 * GIB
    # In a container the driver's numbers are not ours: nobody's share can be told.
    assert found.others(own_pid=4711) is None
    assert found.others_bytes(own_pid=4711) is None


def test_a_device_in_parts_and_a_driver_without_an_answer(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "nvmlDeviceGetMigMode", lambda handle: [1, 1])
    assert read_device_use(Accelerator("cuda")) is None  # type: ignore[arg-type]

    def no_permission(handle: Any) -> Any:
        raise nvml.NVMLError(nvml.NVML_ERROR_NO_PERMISSION)

    monkeypatch.setattr(nvml, "nvmlDeviceGetMigMode", no_permission)
    assert read_device_use(Accelerator("cuda")) is not None  # type: ignore[arg-type]
    monkeypatch.setattr(nvml, "nvmlDeviceGetComputeRunningProcesses", no_permission)
    assert read_device_use(Accelerator("cuda")) is None  # type: ignore[arg-type]
    assert nvml.calls.count("init") == nvml.calls.count("end") == 3


def test_amdsmi(monkeypatch: pytest.MonkeyPatch) -> None:
    def process(pid: int, vram: int | str) -> dict[str, Any]:
        memory = {"gtt_mem": 2097152, "cpu_mem": 16384, "vram_mem": vram}
        return {"name": "N/A", "pid": pid, "mem": vram, "engine_usage": {"gfx": 0, "enc": 0}, "memory_usage": memory}

    amd = SimpleNamespace(
        AmdSmiException=NvmlError,
        AmdSmiMemoryType=SimpleNamespace(VRAM="vram"),
        amdsmi_init=lambda: None,
        amdsmi_shut_down=lambda: None,
        amdsmi_get_processor_handle_from_bdf=lambda address: {ADDRESS: "handle"}[address],
        amdsmi_get_gpu_memory_usage=lambda handle, kind: 12 * GIB,
        amdsmi_get_gpu_memory_total=lambda handle, kind: 192 * GIB,
        amdsmi_get_gpu_process_list=lambda handle: [process(11, 10 * GIB), process(12, "N/A")],
    )
    monkeypatch.setitem(sys.modules, "amdsmi", amd)
    found = read_device_use(Accelerator("rocm"))  # type: ignore[arg-type]
    assert found is not None
    assert (found.source, found.used_bytes, found.total_bytes) == ("amdsmi", 12 * GIB, 192 * GIB)
    assert found.others(own_pid=11) == (ProcessUse(12, None),)
    assert found.others_bytes(own_pid=11) is None, "a share that is not told is not zero"
    assert found.describe() == "process 11 (10.00 GiB), process 12"


@pytest.mark.parametrize("vendor", ["cuda", "rocm"])
def test_without_the_library_there_is_no_answer(vendor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert read_device_use(Accelerator(vendor)) is None  # type: ignore[arg-type]


def test_the_real_library_on_a_machine_without_its_driver() -> None:
    """Where there is a driver this device does not exist; either way it is no answer and no error."""
    assert read_device_use(Accelerator("cuda", "ffff:ff:1f.0")) is None  # type: ignore[arg-type]


def test_a_processor_has_no_vendors_library() -> None:
    assert read_device_use(current_device()) is None or current_device().vendor != "cpu"


def test_a_busy_device_names_who_is_on_it() -> None:
    with pytest.raises(DeviceBusy, match=r"for this process's own context; on it are process 12 \(2.00 GiB\)\)"):
        refuse_busy_device("H100", used_bytes=4 * GIB, allowed_bytes=2 * GIB, users="process 12 (2.00 GiB)")
