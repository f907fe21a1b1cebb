"""Numbers become text in one place; the rounded value chooses the unit."""

from __future__ import annotations

import pytest

from pilotkit import units


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1023.7, "1.00 KiB"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (-1536, "-1.50 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (1024**2, "1.00 MiB"),
        (85018877624, "79.18 GiB"),
        (1024**3 - 1, "1.00 GiB"),
        (1024**4 - 1, "1.00 TiB"),
        (5 * 1024**5, "5120.00 TiB"),
    ],
)
def test_bytes(num_bytes: float, text: str) -> None:
    assert units.format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 us"),
        (0.0000123, "12 us"),
        (0.0009996, "1.0 ms"),
        (0.001, "1.0 ms"),
        (0.0123, "12.3 ms"),
        (0.99996, "1.00 s"),
        (1, "1.00 s"),
        (59.99, "59.99 s"),
        (59.994, "59.99 s"),
        (59.996, "1 min 0 s"),
        (60, "1 min 0 s"),
        (75, "1 min 15 s"),
        (-75, "-1 min 15 s"),
        (3599.4, "59 min 59 s"),
        (3599.7, "1 h 0 min"),
        (3600, "1 h 0 min"),
        (86369, "23 h 59 min"),
        (86370.1, "1 d 0 h"),
        (86400, "1 d 0 h"),
        (90000, "1 d 1 h"),
        (172799, "2 d 0 h"),
        (30 * 86400, "30 d 0 h"),
        (-90000, "-1 d 1 h"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (999.6, "1 k"),
        (0.4321, "0.432"),
        (1000, "1 k"),
        (999_999, "1 M"),
        (1_234_567, "1.23 M"),
        (-1_234_567, "-1.23 M"),
        (9.895e14, "990 T"),
        (4.5e15, "4.5 P"),
    ],
)
def test_count(value: float, text: str) -> None:
    assert units.format_count(value) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("peak_allocated_bytes", 1536, "1.50 KiB"),
        ("link_bandwidth_bytes_per_second", 3 * 1024**3, "3.00 GiB/s"),
        ("tokens_per_second", 12_345, "12.3 k/s"),
        ("step_seconds", 0.0123, "12.3 ms"),
        ("gpu_hours", 5376, "5376.00 h"),
        ("mfu", 0.41234, "0.412"),
        ("num_alloc_retries", 3, "3"),
    ],
)
def test_metric_is_formatted_by_its_suffix(name: str, value: float, text: str) -> None:
    assert units.format_metric(name, value) == text
