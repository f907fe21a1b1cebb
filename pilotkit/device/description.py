"""What this torch is and sees, as plain JSON: for the driver, and for a set that is qualified."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from pilotkit.device.accelerator import built_for, count_devices


def describe_devices() -> dict[str, Any]:
    """What this torch is and sees, as plain JSON; never raises for a missing or broken driver.

    `torch`, `cuda`, `hip`: versions, None where torch was not built for it. `count`, and in visible order `names`,
    `total_bytes`, `uuids` (None where torch does not tell). `driver_count`: devices before any of the
    *_VISIBLE_DEVICES masks, None when the driver cannot be asked. `error`: why devices cannot be used, or None.
    """
    found: list[Any] = []
    error = None
    try:
        found = [torch.cuda.get_device_properties(index) for index in range(count_devices())]
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
    if not count_devices():
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


def _driver_count() -> int | None:
    """What NVML or AMD SMI count; they do not know the masks. torch has both without a public name."""
    vendor = {"cuda": "nvml", "rocm": "amdsmi"}.get(built_for())
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
