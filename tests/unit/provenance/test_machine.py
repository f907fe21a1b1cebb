"""Devices from the drivers' own files, against recorded forms of them: no test machine has such a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotkit.cpus import usable_cpus
from pilotkit.provenance.machine import read_machine

# Recorded form of the open kernel module's file; the closed one says "Kernel Module  535.104.05".
VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@U22)\n"
    "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
)
INFORMATION = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\nGPU UUID: \t GPU-0a\nVideo BIOS: \t 96.00\n"
PROPERTIES = "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version {}\nvendor_id 4098\n"


def test_nvidia(tmp_path: Path) -> None:
    folder = tmp_path / "proc/driver/nvidia"
    for name in ("0000:18:00.0", "0000:2a:00.0"):
        (folder / "gpus" / name).mkdir(parents=True)
        (folder / "gpus" / name / "information").write_text(INFORMATION)
    (folder / "version").write_text(VERSION)
    names = ["NVIDIA H100 80GB HBM3"] * 2
    assert read_machine("cuda", root=tmp_path) == {
        "driver": "570.124.06", "names": names, "cores": usable_cpus().count,
    }  # fmt: skip
    (folder / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n")
    found = read_machine("cuda", root=tmp_path)
    assert found is not None
    assert found["driver"] == "535.104.05"


def test_amd(tmp_path: Path) -> None:
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for number, version in enumerate((0, 90402, 90402)):  # node 0 is a processor
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "properties").write_text(PROPERTIES.format(version))
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    (tmp_path / "sys/module/amdgpu/version").write_text("6.10.5\n")
    assert read_machine("rocm", root=tmp_path) == {
        "driver": "6.10.5", "names": ["gfx942", "gfx942"], "cores": usable_cpus().count,
    }  # fmt: skip


@pytest.mark.parametrize("device_type", ["cuda", "rocm"])
def test_a_machine_without_the_device_says_so(tmp_path: Path, device_type: str) -> None:
    assert read_machine(device_type, root=tmp_path) is None


def test_the_processor_is_the_device_of_cpu(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Some Processor 9\n")
    assert read_machine("cpu", root=tmp_path) == {
        "driver": None, "names": ["Some Processor 9"], "cores": usable_cpus().count,
    }  # fmt: skip
