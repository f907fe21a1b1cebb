"""The devices under the run, read from files that the drivers leave: names, count, driver. Torch-free, no process.

Called for the lock. A machine without the accelerator (a login node) says None, and the gate then compares none of it.
Sources: NVIDIA driver README, "/proc/driver/nvidia"; Linux amdkfd, "/sys/class/kfd/kfd/topology".
"""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any

from pilotkit.cpus import usable_cpus


def read_machine(device_type: str, *, root: Path = Path("/")) -> dict[str, Any] | None:
    """`driver`, `names` (one a device, in the driver's order) and `cores`; None where there is no such device.

    `device_type` is `cpu`, `cuda` or `rocm`; `root` stands in for the file system's own.
    """
    if device_type == "cuda":
        return _nvidia(root)
    if device_type == "rocm":
        return _amd(root)
    return {"driver": None, "names": [_processor(root)], "cores": usable_cpus().count}


def _nvidia(root: Path) -> dict[str, Any] | None:
    folder = root / "proc/driver/nvidia"
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d[\w.]*)", _read(folder / "version"))
    names = []
    for file in sorted(folder.glob("gpus/*/information")):
        model = re.search(r"^Model:\s*(.+)$", _read(file), re.MULTILINE)
        names.append(model[1].strip() if model else "unknown")
    if not names:
        return None
    return {"driver": found[1] if found else None, "names": names, "cores": usable_cpus().count}


def _amd(root: Path) -> dict[str, Any] | None:
    names = []
    for folder in sorted(root.glob("sys/class/kfd/kfd/topology/nodes/*"), key=lambda path: int(path.name)):
        found = re.search(r"^gfx_target_version\s+(\d+)$", _read(folder / "properties"), re.MULTILINE)
        version = int(found[1]) if found else 0
        if version:  # a node of 0 is a processor
            # 90402 -> gfx942: major, minor and stepping, the last one in hexadecimal.
            names.append(f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}")
    if not names:
        return None
    driver = _read(root / "sys/module/amdgpu/version").strip()
    return {"driver": driver or None, "names": names, "cores": usable_cpus().count}


def _processor(root: Path) -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", _read(root / "proc/cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
