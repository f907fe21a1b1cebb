"""The commands that start one torchrun on each node, with srun and without."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import psutil
import pytest

from pilotkit.launch.agent import _environment, _parse, interface_of, local_address, torchrun_command
from pilotkit.launch.nodes import Nodes, find_nodes

AGENT = ("-m", "pilotkit.launch.agent", "--nodes=2", "--nproc=4", "--endpoint=10.0.0.1:29401", "--timeout=60")
PHASE = ("--run-dir=/out/run 1", "--phase=pilot_fsdp")
PROGRAM = ("-m", "pilotkit.worker", "/out/run 1", "pilot_fsdp")


def test_each_phase_has_a_port_of_its_own() -> None:
    nodes = Nodes(2, 1, "10.0.0.1", 29400).for_phase(1)
    command = nodes.command(Path("/out/run 1"), phase="pilot_fsdp", nproc=4, timeout_seconds=60, program=PROGRAM)
    assert command == [sys.executable, *AGENT, *PHASE, "--node-rank=1", "--", *PROGRAM]


def test_srun_starts_one_agent_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    nodes = Nodes(2, 0, "10.0.0.1", 29401, has_srun=True)
    command = nodes.command(Path("/out/run 1"), phase="pilot_fsdp", nproc=4, timeout_seconds=60, program=PROGRAM)
    assert command == [
        *("srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=8", "--kill-on-bad-exit=1"),
        *(sys.executable, *AGENT, *PHASE, "--", *PROGRAM),
    ]
    variables = nodes.variables({"GLOO_SOCKET_IFNAME": "lo", "A": "b"})
    assert (variables["SLURM_JOB_ID"], variables["A"]) == ("7", "b")
    assert "GLOO_SOCKET_IFNAME" not in variables, "loopback leads to no other node"


def test_torchrun_meets_at_the_first_node() -> None:
    given = _parse([*AGENT[2:], *PHASE, "--", *PROGRAM])
    assert torchrun_command(given, rank=1, address="10.0.0.2") == [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=4", "--max-restarts=0"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.1:29401", "--rdzv-id=pilot_fsdp"),
        "--rdzv-conf=is_host=false,read_timeout=60,join_timeout=60",
        "--local-addr=10.0.0.2",
        *PROGRAM,
    ]


def test_what_a_script_is_given_is_no_option_of_ours() -> None:
    program = ["train.py", "--nodes=7", "--", "--phase", "x"]
    given = _parse([*AGENT[2:], *PHASE, "--", *program])
    assert (given.nodes, given.program) == (2, program)


def test_nothing_of_srun_reaches_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_PROCID", "SLURM_STEP_ID", "PMI_RANK", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    found = _environment(1, "127.0.0.1")
    assert not [name for name in found if name.startswith(("SLURM_", "PMI_", "MASTER_"))]
    assert found["PILOTKIT_NODE_RANK"] == "1"
    assert found["GLOO_SOCKET_IFNAME"] == interface_of("127.0.0.1")


def test_the_address_is_the_one_that_leads_there() -> None:
    assert local_address("127.0.0.1", 29400) == "127.0.0.1"
    loopback = next(
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(found.family == socket.AF_INET and found.address == "127.0.0.1" for found in addresses)
    )
    assert interface_of("127.0.0.1") == loopback
    assert interface_of("192.0.2.1") is None


def test_one_node_needs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NUM_NODES", raising=False)
    monkeypatch.delenv("SLURM_NNODES", raising=False)
    assert find_nodes(count=1, endpoint=None, node_rank=0) is None
    assert find_nodes(count=2, endpoint=None, node_rank=0) is None, "the others are not here"
    assert find_nodes(count=2, endpoint=("h", 29400), node_rank=1) == Nodes(2, 1, "h", 29400)
