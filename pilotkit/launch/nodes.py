"""The nodes that one run has, and the command that starts a phase on all of them: one torchrun on each.

Called by the stage `pilot` through `pilotkit.stages.run`. In a Slurm job of several nodes srun starts the agents;
without Slurm every node is given the same command, with the endpoint where they meet and a number of its own.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pilotkit.launch.slurm_view import has_slurm, node_address


@dataclass(frozen=True)
class Nodes:
    """`count` nodes, of which this is number `rank`; they meet at `host`:`port`, which is on number 0."""

    count: int
    rank: int
    host: str
    port: int
    has_srun: bool = False

    def for_phase(self, number: int) -> Nodes:
        """Another port for every phase: an agent that is late must not meet those of the phase before."""
        return dataclasses.replace(self, port=_free_port() if self.has_srun else self.port + number)

    def command(
        self, run_dir: Path, *, phase: str, nproc: int, timeout_seconds: float, program: Sequence[str]
    ) -> list[str]:
        """Start one agent on every node with srun, or the one of this node; `program` is what each rank runs."""
        agent = [
            *(sys.executable, "-m", "pilotkit.launch.agent", f"--nodes={self.count}", f"--nproc={nproc}"),
            *(f"--endpoint={self.host}:{self.port}", f"--timeout={timeout_seconds:.0f}"),
            *(f"--run-dir={run_dir}", f"--phase={phase}"),
        ]
        if not self.has_srun:
            return [*agent, f"--node-rank={self.rank}", "--", *program]
        srun = ["srun", f"--nodes={self.count}", f"--ntasks={self.count}", "--ntasks-per-node=1"]
        # Slurm 22.05 and later do not hand the cores of the job on to its steps by themselves.
        cores = os.environ.get("SLURM_CPUS_PER_TASK")
        # Inside a step, as of `srun --pty bash`, another one gets nothing unless it shares.
        overlap = ["--overlap"] if "SLURM_STEP_ID" in os.environ else []
        # One agent that ends badly ends the others, which would wait for it.
        limits = [*([f"--cpus-per-task={cores}"] if cores else []), "--kill-on-bad-exit=1"]
        return [*srun, *overlap, *limits, *agent, "--", *program]

    def variables(self, base: Mapping[str, str]) -> dict[str, str]:
        """What srun has to know of its job; the agents take it out again."""
        ours = {name: value for name, value in os.environ.items() if name.startswith("SLURM_")} if self.has_srun else {}
        variables = {**base, **ours}
        # Loopback, the default where all ranks are on one machine, leads to no other one.
        if "GLOO_SOCKET_IFNAME" not in os.environ:
            variables.pop("GLOO_SOCKET_IFNAME", None)
        return variables


def find_nodes(*, count: int, endpoint: tuple[str, int] | None, node_rank: int) -> Nodes | None:
    """How this process reaches `count` nodes; None when it has only its own."""
    if count == 1:
        return None
    if endpoint is not None:
        return Nodes(count, node_rank, *endpoint)
    environ = os.environ
    allocated = environ.get("SLURM_JOB_NUM_NODES", environ.get("SLURM_NNODES", "1"))
    here = environ.get("SLURMD_NODENAME")
    # The batch script of a job runs on its first node; a terminal that only holds an allocation does not.
    if not (allocated.isdigit() and int(allocated) >= count and here and has_slurm()):
        return None
    return Nodes(count, 0, node_address(here) or socket.gethostname(), _free_port(), has_srun=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
