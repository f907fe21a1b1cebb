"""Units: the one place where bytes, seconds and counts become text.

GiB is 1024 to the power of 3, GB is 1000 to the power of 3. Stored values are always bytes and seconds.
"""

from __future__ import annotations

KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def format_bytes(num_bytes: float) -> str:
    """`1536` -> `1.50 KiB`; binary units, two decimals from KiB up."""
    size = abs(num_bytes)
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{num_bytes / unit:.2f} {name}"
    return f"{num_bytes:.0f} B"


def format_seconds(seconds: float) -> str:
    """`0.0123` -> `12.3 ms`, `75` -> `1 min 15 s`, `90000` -> `1 d 1 h`."""
    size = abs(seconds)
    if size < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if size < 1:
        return f"{seconds * 1e3:.1f} ms"
    if size < MINUTE:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if size < HOUR:
        return f"{whole // 60} min {whole % 60} s"
    if size < DAY:
        minutes = round(seconds / 60)
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(seconds / HOUR)
    return f"{hours // 24} d {hours % 24} h"


def format_count(value: float) -> str:
    """`1234567` -> `1.23 M`; decimal prefixes, three significant digits."""
    size = abs(value)
    for unit, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"


def format_metric(name: str, value: float) -> str:
    """Format a metric by the unit in its suffix: `_bytes`, `_seconds`, `_per_second`, `_hours`; bare is a ratio or a count."""
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("bytes_per_second"):
        return f"{format_bytes(value)}/s"
    if name.endswith("_per_second"):
        return f"{format_count(value)}/s"
    if name.endswith("_seconds"):
        return format_seconds(value)
    if name.endswith("_hours"):
        return f"{value:.2f} h"
    return format_count(value)
