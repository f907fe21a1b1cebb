"""Processors and shared memory that a process may use: affinity, cgroup quotas of both versions, a small /dev/shm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilotkit.cpus import UsableCpus, shared_memory_free_bytes, shared_memory_needed_bytes, usable_cpus


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 96)


@pytest.mark.usefixtures("eight_cpus")
@pytest.mark.parametrize(
    ("memberships", "files", "expected"),
    [
        pytest.param("0::/job", {}, UsableCpus(8, "affinity mask"), id="no quota files"),
        pytest.param("0::/job", {"job/cpu.max": "max 100000"}, UsableCpus(8, "affinity mask"), id="v2 unlimited"),
        pytest.param(
            "0::/job",
            {"job/cpu.max": "250000 100000"},
            UsableCpus(2, "cgroup v2 quota of 2.5 CPUs"),
            id="v2 rounds down",
        ),
        pytest.param(
            "0::/job",
            {"job/cpu.max": "50000 100000"},
            UsableCpus(1, "cgroup v2 quota of 0.5 CPUs"),
            id="v2 at least one",
        ),
        pytest.param(
            "0::/job", {"job/cpu.max": "1600000 100000"}, UsableCpus(8, "affinity mask"), id="v2 above affinity"
        ),
        pytest.param(
            "0::/slurm/job/step",
            {"slurm/job/step/cpu.max": "max 100000", "slurm/job/cpu.max": "300000 100000"},
            UsableCpus(3, "cgroup v2 quota of 3 CPUs"),
            id="v2 quota of the parent",
        ),
        pytest.param(
            "0::/host/path/not/mounted",
            {"cpu.max": "400000 100000"},
            UsableCpus(4, "cgroup v2 quota of 4 CPUs"),
            id="v2 in a container",
        ),
        pytest.param(
            "5:memory:/m\n3:cpu,cpuacct:/job\n",
            {"cpu,cpuacct/job/cpu.cfs_quota_us": "200000", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"},
            UsableCpus(2, "cgroup v1 quota of 2 CPUs"),
            id="v1",
        ),
        pytest.param(
            "3:cpu:/",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            UsableCpus(8, "affinity mask"),
            id="v1 unlimited",
        ),
        pytest.param(
            "3:cpu:/\n0::/",
            {
                "cpu/cpu.cfs_quota_us": "500000",
                "cpu/cpu.cfs_period_us": "100000",
                "cpu.max": "600000 100000",
            },
            UsableCpus(5, "cgroup v1 quota of 5 CPUs"),
            id="both versions, the smaller",
        ),
    ],
)
def test_usable_cpus(tmp_path: Path, memberships: str, files: dict[str, str], expected: UsableCpus) -> None:
    write(tmp_path / "proc", memberships)
    for name, text in files.items():
        write(tmp_path / "root" / name, text + "\n")
    assert usable_cpus(cgroup_file=tmp_path / "proc", cgroup_root=tmp_path / "root") == expected


@pytest.mark.usefixtures("eight_cpus")
def test_usable_cpus_without_cgroups(tmp_path: Path) -> None:
    assert usable_cpus(cgroup_file=tmp_path / "none", cgroup_root=tmp_path) == UsableCpus(8, "affinity mask")


def test_usable_cpus_follows_the_real_mask_of_this_process() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cpus().count == 1
    finally:
        os.sched_setaffinity(0, before)


def test_shared_memory_free_bytes(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    free = shared_memory_free_bytes(tmp_path)
    assert free is not None
    assert 0 < free <= found.f_blocks * found.f_frsize


def test_shared_memory_that_is_not_there(tmp_path: Path) -> None:
    assert shared_memory_free_bytes(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("num_workers", "prefetch_factor", "expected"),
    [
        pytest.param(2, 2, 40_000_000, id="two workers"),
        pytest.param(8, 4, 320_000_000, id="eight workers"),
        pytest.param(0, 2, 0, id="no workers share nothing"),
    ],
)
def test_shared_memory_needed_bytes(num_workers: int, prefetch_factor: int, expected: int) -> None:
    found = shared_memory_needed_bytes(10_000_000, num_workers=num_workers, prefetch_factor=prefetch_factor)
    assert found == expected
