"""How many processors and how much shared memory this process may really use.

Called by the stages that suggest loader workers, and by the worker for its thread counts. Torch-free.
Never asks how many processors the node has: a job usually owns a part of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_FILE = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class UsableCpus:
    """Processors that this process may keep busy at once, and what sets that number."""

    count: int
    source: str


def usable_cpus(*, cgroup_file: Path = CGROUP_FILE, cgroup_root: Path = CGROUP_ROOT) -> UsableCpus:
    """The smaller of the affinity mask and the cgroup's CPU quota (rounded down, at least 1).

    The two paths are where Linux keeps them; a system without cgroups is counted by affinity alone.
    """
    affinity = len(os.sched_getaffinity(0))
    quota, version = min(_quotas(cgroup_file, cgroup_root), default=(float("inf"), ""))
    if quota >= affinity:
        return UsableCpus(affinity, "affinity mask")
    return UsableCpus(max(1, int(quota)), f"{version} quota of {quota:g} CPUs")


def shared_memory_free_bytes(path: str | Path = "/dev/shm") -> int | None:  # noqa: S108 - asked about, not written to
    """Free bytes where loader workers put their batches; None when the system has no such place."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def shared_memory_needed_bytes(batch_bytes: int, *, num_workers: int, prefetch_factor: int) -> int:
    """Shared memory that loader workers fill before anything is read: workers x prefetch factor x batch bytes.

    Source: `torch.utils.data.DataLoader` keeps `num_workers * prefetch_factor` batches in flight.
    With 0 workers batches are made in the process itself and nothing is shared.
    """
    assert batch_bytes >= 0, batch_bytes
    assert num_workers >= 0, num_workers
    assert prefetch_factor >= 1, prefetch_factor
    return num_workers * prefetch_factor * batch_bytes


def _quotas(cgroup_file: Path, cgroup_root: Path) -> Iterator[tuple[float, str]]:
    """The quota, in processors, of every cgroup that this process is in: its own and all those around it."""
    try:
        lines = cgroup_file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, inside = rest.partition(":")
        if controllers == "":
            for folder in _upwards(cgroup_root, inside):
                yield from _quota_v2(folder)
        elif "cpu" in controllers.split(","):
            # Distributions mount the controller under its own name or under the pair's.
            for name in dict.fromkeys(("cpu", controllers)):
                for folder in _upwards(cgroup_root / name, inside):
                    yield from _quota_v1(folder)


def _upwards(root: Path, inside: str) -> Iterator[Path]:
    """The folder of the group, then its parents up to the root.

    In a container the path may be the host's, which is not mounted here; the walk still ends at the root, which
    is then the container's own group.
    """
    parts = [part for part in inside.split("/") if part and part != ".."]
    for length in range(len(parts), -1, -1):
        yield root.joinpath(*parts[:length])


def _quota_v2(folder: Path) -> Iterator[tuple[float, str]]:
    words = _words(folder / "cpu.max")
    if len(words) == 2 and words[0] != "max":
        yield int(words[0]) / int(words[1]), "cgroup v2"


def _quota_v1(folder: Path) -> Iterator[tuple[float, str]]:
    quota, period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
    if quota and period and int(quota[0]) > 0:  # -1 is no limit
        yield int(quota[0]) / int(period[0]), "cgroup v1"


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []
