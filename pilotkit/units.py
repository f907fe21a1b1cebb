"""Units: the one place where bytes, seconds and counts become text.

GiB is 1024 to the power of 3, GB is 1000 to the power of 3. Stored values are always bytes and seconds.
"""

from __future__ import annotations

KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def format_bytes(num_bytes: float) -> str:
    """`1536` -> `1.50 KiB`; binary units, two decimals from KiB up."""
    size = abs(num_bytes)
    for unit, name, digits in ((TIB, "TiB", 2), (GIB, "GiB", 2), (MIB, "MiB", 2), (KIB, "KiB", 0)):
        # What the next smaller unit would print chooses the unit, so that nothing reads "1024.00 KiB".
        if round(size / (unit // 1024), digits) >= 1024:
            return f"{num_bytes / unit:.2f} {name}"
    return f"{num_bytes:.0f} B"


def format_seconds(seconds: float) -> str:
    """`0.0123` -> `12.3 ms`, `75` -> `1 min 15 s`, `90000` -> `1 d 1 h`.

    The rounded value chooses the unit: 3599.7 s is `1 h 0 min`, and 59.996 s is `1 min 0 s`.
    """
    sign, size = ("-" if seconds < 0 else ""), abs(seconds)
    if round(size * 1e6) < 1000:
        return f"{sign}{size * 1e6:.0f} us"
    if round(size * 1e3, 1) < 1000:
        return f"{sign}{size * 1e3:.1f} ms"
    if round(size, 2) < MINUTE:
        return f"{sign}{size:.2f} s"
    whole = round(size)
    if whole < HOUR:
        return f"{sign}{whole // 60} min {whole % 60} s"
    minutes = round(size / MINUTE)
    if minutes < 24 * 60:
        return f"{sign}{minutes // 60} h {minutes % 60} min"
    hours = round(size / HOUR)
    return f"{sign}{hours // 24} d {hours % 24} h"


def format_count(value: float) -> str:
    """`1234567` -> `1.23 M`; decimal prefixes, three significant digits."""
    rounded = float(f"{value:.3g}")
    for unit, name in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(rounded) >= unit:
            return f"{rounded / unit:.3g} {name}"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"


def format_chance(probability: float) -> str:
    """A share in percent. Draws say nothing of certainty: the ends are `over 99 %` and `under 1 %`."""
    if probability > 0.99:
        return "over 99 %"
    return "under 1 %" if probability < 0.01 else f"{probability * 100:.0f} %"


def format_metric(name: str, value: float) -> str:
    """Format a metric by the unit in its suffix.

    `_bytes`, `_seconds`, `_per_second`, `_bytes_per_second`, `_hours`; bare is a ratio or a count.
    """
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
