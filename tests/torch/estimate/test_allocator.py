"""The model of the caching allocator, against the sizes that CUDACachingAllocator.cpp prescribes."""

from __future__ import annotations

import pytest

from pilotkit.estimate.allocator import Replayed, replay
from pilotkit.units import MIB


@pytest.mark.parametrize(
    ("num_bytes", "native", "expandable"),
    [
        pytest.param(1, 2 * MIB, 2 * MIB, id="a byte"),
        pytest.param(MIB, 2 * MIB, 2 * MIB, id="largest small one"),
        pytest.param(MIB + 1, 20 * MIB, 20 * MIB, id="smallest large one"),
        pytest.param(10 * MIB, 10 * MIB, 20 * MIB, id="a segment of its own"),
        pytest.param(21 * MIB, 22 * MIB, 40 * MIB, id="rounded up"),
    ],
)
def test_one_allocation(num_bytes: int, native: int, expandable: int) -> None:
    assert replay([(1, num_bytes, 0)], expandable=False).peak_reserved_bytes == native
    assert replay([(1, num_bytes, 0)], expandable=True).peak_reserved_bytes == expandable


def test_sizes_are_rounded_up_to_512_bytes() -> None:
    assert replay([(1, 100, 0), (2, 513, 0)], expandable=False) == Replayed(2 * MIB, 512 + 1024)


def test_freed_memory_is_used_again_and_neighbours_merge() -> None:
    two = [(1, 8 * MIB, 0), (2, 8 * MIB, 0), (1, -8 * MIB, 0), (2, -8 * MIB, 0)]
    assert replay([*two, (3, 16 * MIB, 0)], expandable=False).peak_reserved_bytes == 20 * MIB


def test_native_segments_fragment_where_expandable_ones_do_not() -> None:
    """Two freed segments of 30 MiB hold no 50 MiB; one segment that has grown to 60 does."""
    asked = [(1, 30 * MIB, 0), (2, 30 * MIB, 0), (1, -30 * MIB, 0), (2, -30 * MIB, 0), (3, 50 * MIB, 0)]
    assert replay(asked, expandable=False).peak_reserved_bytes == 110 * MIB
    assert replay(asked, expandable=True).peak_reserved_bytes == 60 * MIB


def test_streams_share_nothing() -> None:
    asked = [(1, 30 * MIB, 0), (1, -30 * MIB, 0), (2, 30 * MIB, 1)]
    assert replay(asked, expandable=False).peak_reserved_bytes == 60 * MIB
