"""How many accelerators the environment lets a process see. Called before ranks are started; torch-free.

Follows the runtimes' own rules, which differ: CUDA_VISIBLE_DEVICES (NVIDIA, and honoured by HIP), HIP_VISIBLE_DEVICES,
and ROCR_VISIBLE_DEVICES, which is applied first and leaves the list that the other two index into.
Sources: CUDA programming guide, "CUDA Environment Variables"; torch.cuda._parse_visible_devices; ROCR-Runtime,
amd_filter_device.cpp. Never changes a variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

CUDA, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"


@dataclass(frozen=True)
class VisibleDevices:
    """Devices that a process will see. `note` says what the count rests on.

    `problem` says why a start must be refused although there may be devices; None when there is no reason.
    """

    count: int
    note: str
    problem: str | None = None


def count_visible(
    environ: Mapping[str, str], *, vendor: Literal["nvidia", "amd"], ask_driver: Callable[[], int]
) -> VisibleDevices:
    """Count the devices that a process with `environ` sees.

    `ask_driver` returns how many devices the machine has before any mask, 0 or less when the driver is missing; it is
    not asked when the masks leave nothing anyway. A UUID is taken to be one of those devices.
    """
    if vendor == "nvidia":
        return _count_masked(CUDA, environ.get(CUDA), ask_driver)
    return _count_amd(environ, ask_driver)


def masks_of(environ: Mapping[str, str], *, vendor: Literal["nvidia", "amd"]) -> list[str]:
    """The variables that are set and that this vendor's runtime obeys, in the order in which they are applied."""
    obeyed = [CUDA] if vendor == "nvidia" else [ROCR, HIP if HIP in environ else CUDA]
    return [name for name in obeyed if name in environ]


def _count_amd(environ: Mapping[str, str], ask_driver: Callable[[], int]) -> VisibleDevices:
    hip, cuda, rocr = environ.get(HIP), environ.get(CUDA), environ.get(ROCR)
    name, value = (HIP, hip) if hip is not None else (CUDA, cuda)
    if rocr is None:
        found = _count_masked(name, value, ask_driver)
    else:
        found = _count_twice_masked(name, value, rocr, ask_driver)
    if hip is not None and cuda is not None and _items(hip) != _items(cuda):
        conflict = f"{HIP}={hip} and {CUDA}={cuda} disagree; unset one of them"
        return VisibleDevices(found.count, found.note, conflict)
    return found


def _count_twice_masked(name: str, value: str | None, rocr: str, ask_driver: Callable[[], int]) -> VisibleDevices:
    """ROCR's mask first, then `name`'s, whose numbers index what the first one left."""
    left = _rocr_count(rocr, ask_driver)
    first = f"{ROCR}={rocr} leaves {left}"
    if value is None:
        return VisibleDevices(left, first)
    if "GPU-" in value.upper():
        return VisibleDevices(
            0, first, f"{name}={value} names devices by UUID while {ROCR}={rocr} is set; use one of the two"
        )
    found = _count_masked(name, value, lambda: left)
    lost = len(_items(value)) - found.count
    problem = None
    if value.strip() and lost > 0:
        problem = (
            f"{name}={value} indexes the list that {ROCR}={rocr} leaves ({left}), and {lost} of its entries "
            "cannot be used; "
            f"unset {name}, or number its devices from 0"
        )
    return VisibleDevices(found.count, f"{first}; then {found.note}", problem)


def _count_masked(name: str, value: str | None, available: Callable[[], int]) -> VisibleDevices:
    """CUDA's rules for one variable over a list of `available` devices."""
    if value is None:
        count = max(0, available())
        return VisibleDevices(count, f"{name} is not set; the driver has {count}")
    setting = f"{name}={value}"
    if value.strip() == "NoDevFiles":
        return VisibleDevices(0, f"{setting}: Slurm gave this job no device")
    items = _items(value)
    if items[0].startswith("MIG-"):
        return _count_mig(setting, _identifiers(items, "MIG-"), available)
    if items[0].startswith("GPU-"):
        identifiers = _identifiers(items, "GPU-")
        count = min(len(identifiers), max(0, available())) if identifiers else 0
    else:
        ordinals = _ordinals(items)
        machine = max(0, available()) if ordinals else 0
        # An index that the machine does not have ends the list there.
        count = len(list(takewhile(lambda ordinal: ordinal < machine, ordinals)))
    ignored = len(items) - count
    return VisibleDevices(count, setting if not ignored or not value.strip() else f"{setting}: only {count} usable")


def _count_mig(setting: str, slices: list[str], available: Callable[[], int]) -> VisibleDevices:
    count = 1 if slices and available() > 0 else 0
    if len(slices) < 2:
        return VisibleDevices(count, setting)
    return VisibleDevices(
        count,
        f"{setting}: a process sees the first MIG slice only",
        f"{setting} names {len(slices)} MIG slices, but a process can use one, and ranks cannot train together "
        "over slices; name one slice, or use whole devices",
    )


def _rocr_count(value: str, ask_driver: Callable[[], int]) -> int:
    """ROCr's own rules: numbers and UUIDs may be mixed; a bad, missing or repeated entry ends the list there."""
    items = _items(value)
    if not items[0]:
        return 0
    machine = max(0, ask_driver())
    seen: set[str] = set()
    for item in items[:machine]:
        number = re.fullmatch(r"\d+", item)
        key = str(int(item)) if number else item.upper()
        if key in seen or (number and int(item) >= machine) or not (number or key.startswith("GPU-")):
            break
        seen.add(key)
    return len(seen)


def _items(value: str) -> list[str]:
    return [item.strip() for item in value.split(",")]


def _identifiers(items: list[str], prefix: str) -> list[str]:
    """Entries up to the first of another kind; none at all when one is repeated."""
    found = list(takewhile(lambda item: item.startswith(prefix), items))
    return found if len(set(found)) == len(found) else []


def _ordinals(items: list[str]) -> list[int]:
    """Entries up to the first that is negative or no number; none at all when one is repeated.

    As C's strtoul reads them: `1gpu2` is 1.
    """
    found: list[int] = []
    for item in items:
        number = re.match(r"\+?(\d+)", item)
        if number is None:
            break
        if int(number[1]) in found:
            return []
        found.append(int(number[1]))
    return found
