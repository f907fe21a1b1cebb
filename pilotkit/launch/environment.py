"""The environment that worker processes get: what concerns them, nothing that a scheduler or another job left."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pilotkit.variables import DRIVER_PID_VARIABLE, RUN_DIR_VARIABLE

# A rank that sees these believes it belongs to somebody else's job: another rendezvous, another rank,
# a binding to a few cores. torchrun sets those of its own that the ranks need.
FOREIGN = re.compile(
    r"(SLURM|SBATCH|SRUN|SALLOC|PMI|PMIX|OMPI|MPI|HYDRA_LAUNCHER|TORCHELASTIC)_.*"
    r"|MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_.*"
)


@dataclass(frozen=True)
class WorkerEnvironment:
    """`variables` is the whole environment; `removed` names what was taken out; `threads_set_by` says who chose."""

    variables: dict[str, str]
    removed: tuple[str, ...]
    num_threads: int
    threads_set_by: str

    def to_dict(self) -> dict[str, object]:
        """What a record keeps of it."""
        return {
            "num_threads": self.num_threads,
            "threads_set_by": self.threads_set_by,
            "removed_variables": list(self.removed),
        }


def worker_environment(base: Mapping[str, str], *, run_dir: Path, usable_cpus: int, nproc: int) -> WorkerEnvironment:
    """Build the environment for `nproc` processes that share `usable_cpus` cores.

    A thread count that the user exported stays; otherwise each rank gets an equal share, where torchrun
    would give one thread and a warning.
    """
    removed = tuple(sorted(name for name in base if FOREIGN.fullmatch(name)))
    variables = {name: value for name, value in base.items() if name not in removed}
    given = variables.get("OMP_NUM_THREADS", "")
    if given.isdigit() and int(given) > 0:
        num_threads, set_by = int(given), "OMP_NUM_THREADS in the environment"
    else:
        num_threads, set_by = max(usable_cpus // nproc, 1), "pilotkit"
    variables |= {
        "OMP_NUM_THREADS": str(num_threads),
        "PYTHONUNBUFFERED": "1",
        RUN_DIR_VARIABLE: os.fspath(run_dir),
        DRIVER_PID_VARIABLE: str(os.getpid()),
    }
    variables |= worker_defaults(variables)
    return WorkerEnvironment(variables, removed, num_threads, set_by)


def worker_defaults(base: Mapping[str, str]) -> dict[str, str]:
    """What workers get unless the user exported it.

    Both must be there before torch starts: the first makes cuBLAS repeatable, the second keeps ranks of one machine on
    loopback, where a host name that does not resolve cannot stop them.
    """
    defaults = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "GLOO_SOCKET_IFNAME": "lo"}
    return {name: base.get(name, value) for name, value in defaults.items()}
