"""Peak resident memory of this process, as the kernel counts it. Called by the worker and by StepMeter.

Counts code, caches and other libraries too; for tensors alone see `pilotkit.meter.memory`.
"""

from __future__ import annotations

from pathlib import Path

from pilotkit.units import KIB

_PROC = Path("/proc/self")


def peak_rss_bytes(*, proc: Path = _PROC) -> int | None:
    """The largest resident set since the process began or `reset_peak_rss` worked (VmHWM), bytes; None if not told."""
    try:
        lines = (proc / "status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * KIB  # the file says kB and means 1024
    return None


def reset_peak_rss(*, proc: Path = _PROC) -> bool:
    """Let the peak start again from what is resident now. False when the kernel refuses, as some containers do.

    After a refusal `peak_rss_bytes` still holds an earlier peak, and the figure must say so.
    """
    try:
        (proc / "clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True
