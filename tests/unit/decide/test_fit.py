"""What is added to the allocator's memory, and when the sum fits."""

from __future__ import annotations

import pytest

from pilotkit.decide.fit import judge_fit, overhead_of
from pilotkit.units import GIB, MIB

OPTIONS = {"context_bytes": 600 * MIB, "communication_bytes": GIB, "workspace_bytes": 64 * MIB}


@pytest.mark.parametrize(
    ("device_type", "world_size", "expected"),
    [
        pytest.param("cpu", 8, 0, id="processor"),
        pytest.param("cuda", 1, 664 * MIB, id="one device"),
        pytest.param("cuda", 8, 664 * MIB + GIB, id="several"),
    ],
)
def test_overhead(device_type: str, world_size: int, expected: int) -> None:
    assert overhead_of(device_type=device_type, world_size=world_size, **OPTIONS).num_bytes == expected


def test_the_communication_library_has_its_vendor_s_name() -> None:
    lines = overhead_of(device_type="rocm", world_size=2, **OPTIONS).lines
    assert lines[-1] == {"what": "RCCL buffers", "num_bytes": GIB}


def test_headroom_stays_free() -> None:
    assert judge_fit(90 * GIB, memory_bytes=100 * GIB, headroom=0.1).fits
    assert not judge_fit(90 * GIB + 1, memory_bytes=100 * GIB, headroom=0.1).fits
