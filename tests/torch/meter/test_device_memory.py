"""Three numbers and what lies between them; a device that is not empty is refused."""

from __future__ import annotations

import pytest

from pilotkit.meter.device_memory import DeviceBusy, DeviceMemory, refuse_busy_device, split_device_memory
from pilotkit.units import GIB


def test_what_others_hold_is_not_ours() -> None:
    found = split_device_memory(allocated=30 * GIB, reserved=32 * GIB, used=39 * GIB, used_before=5 * GIB)
    assert found == DeviceMemory(
        own_bytes=34 * GIB, caching_bytes=2 * GIB, overhead_bytes=2 * GIB, others_bytes=5 * GIB
    )


def test_a_shrinking_neighbour_gives_no_negative_overhead() -> None:
    found = split_device_memory(allocated=30 * GIB, reserved=36 * GIB, used=39 * GIB, used_before=5 * GIB)
    assert (found.own_bytes, found.overhead_bytes) == (34 * GIB, 0)


def test_a_busy_device_is_refused_with_both_numbers() -> None:
    refuse_busy_device("H100", used_bytes=GIB, allowed_bytes=2 * GIB)
    with pytest.raises(DeviceBusy, match=r"H100 is not empty: 5\.00 GiB were in use .* \(allowed are 2\.00 GiB"):
        refuse_busy_device("H100", used_bytes=5 * GIB, allowed_bytes=2 * GIB)
