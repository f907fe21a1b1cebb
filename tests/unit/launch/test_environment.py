"""What a worker's environment holds, and what a scheduler left in ours that it must not hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilotkit.launch.environment import worker_environment


def test_golden_environment() -> None:
    base = {
        "PATH": "/bin", "HOME": "/home/me", "CUDA_VISIBLE_DEVICES": "0,1", "HF_HOME": "/cache",
        "SLURM_PROCID": "3", "SLURM_CPU_BIND": "mask", "SBATCH_ACCOUNT": "a", "SRUN_DEBUG": "3", "PMI_RANK": "1",
        "PMIX_RANK": "1", "OMPI_COMM_WORLD_RANK": "1", "TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500", "RANK": "7", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0", "ROLE_RANK": "0",
    }  # fmt: skip
    found = worker_environment(base, run_dir=Path("/out/run 1"), usable_cpus=8, nproc=2)
    assert found.variables == {
        "PATH": "/bin",
        "HOME": "/home/me",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "HF_HOME": "/cache",
        "OMP_NUM_THREADS": "4",
        "PYTHONUNBUFFERED": "1",
        "PILOTKIT_RUN_DIR": "/out/run 1",
        "PILOTKIT_DRIVER_PID": str(os.getpid()),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    assert set(found.removed) == set(base) - {"PATH", "HOME", "CUDA_VISIBLE_DEVICES", "HF_HOME"}
    assert found.to_dict() == {
        "num_threads": 4,
        "threads_set_by": "pilotkit",
        "removed_variables": sorted(found.removed),
    }


@pytest.mark.parametrize(
    ("exported", "usable_cpus", "nproc", "num_threads", "set_by"),
    [
        (None, 8, 3, 2, "pilotkit"),
        (None, 2, 8, 1, "pilotkit"),
        ("3", 8, 2, 3, "OMP_NUM_THREADS in the environment"),
        ("", 8, 2, 4, "pilotkit"),
        ("0", 8, 2, 4, "pilotkit"),
        ("many", 8, 2, 4, "pilotkit"),
    ],
    ids=["share, rounded down", "more ranks than cores", "exported", "empty", "zero", "no number"],
)
def test_threads(exported: str | None, usable_cpus: int, nproc: int, num_threads: int, set_by: str) -> None:
    base = {} if exported is None else {"OMP_NUM_THREADS": exported}
    found = worker_environment(base, run_dir=Path("/r"), usable_cpus=usable_cpus, nproc=nproc)
    assert (found.num_threads, found.threads_set_by) == (num_threads, set_by)
    assert found.variables["OMP_NUM_THREADS"] == str(num_threads)


def test_what_the_user_chose_for_libraries_stays() -> None:
    base = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "GLOO_SOCKET_IFNAME": "eth0"}
    found = worker_environment(base, run_dir=Path("/r"), usable_cpus=1, nproc=1)
    assert {name: found.variables[name] for name in base} == base
    assert found.removed == ()
