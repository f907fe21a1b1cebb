"""The line that says where a figure was measured. Called by every benchmark at its start."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path


def describe(*packages: str) -> str:
    """Date, processor, usable cores, load, Python and the versions of the given distributions, on one line."""
    cores = len(os.sched_getaffinity(0))
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    load = os.getloadavg()[0]
    return f"{date}, {_processor()}, {cores} cores, load {load:.1f}, Python {platform.python_version()}, {versions}"


def _processor() -> str:
    """The kernel's name for the processor; the architecture where it gives none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
