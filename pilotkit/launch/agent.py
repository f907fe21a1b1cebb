"""`python -m pilotkit.launch.agent ... -- PROGRAM`: the torchrun of one node, of a run on several.

Started on each of them. In order: find the address by which the first node is reached, and its interface; start
torchrun, which meets the others there; hand SIGTERM on, and turn SIGUSR2, which Slurm sends to steps, into the file
that asks the ranks to save; end with torchrun, or with who started us. Never imports torch.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import psutil

from pilotkit.launch.environment import FOREIGN
from pilotkit.records.run_dir import RunDir
from pilotkit.variables import DRIVER_PID_VARIABLE, NODE_RANK_VARIABLE

POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is torchrun's; 128 + N when signal N ended it."""
    given = _parse(arguments)
    host, _, port = given.endpoint.rpartition(":")
    rank = given.node_rank if given.node_rank is not None else int(os.environ["SLURM_NODEID"])
    address = local_address(host, int(port))
    phase = RunDir(Path(given.run_dir)).phase(given.phase)
    phase.path.mkdir(parents=True, exist_ok=True)
    # A step's signals reach all of its processes: torchrun and the ranks inherit that this one is held back.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    with subprocess.Popen(  # noqa: S603 - the command is built below
        torchrun_command(given, rank=rank, address=address), env=_environment(rank, address)
    ) as torchrun:

        def save_and_end(_number: int, _frame: FrameType | None) -> None:
            phase.stop.touch()

        def end(number: int, _frame: FrameType | None) -> None:
            torchrun.send_signal(number)

        signal.signal(signal.SIGUSR2, save_and_end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, end)
        code = _wait(torchrun)
    return code if code >= 0 else 128 - code


def torchrun_command(given: argparse.Namespace, *, rank: int, address: str) -> list[str]:
    """c10d rendezvous whose store is on node 0, told to every node: names and addresses may be the same on all."""
    conf = {
        "is_host": str(rank == 0).lower(),
        # The first node may still be busy with what it does alone.
        "read_timeout": given.timeout,
        "join_timeout": given.timeout,
    }
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *(f"--nnodes={given.nodes}", f"--nproc-per-node={given.nproc}", "--max-restarts=0"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={given.endpoint}", f"--rdzv-id={given.phase}"),
        f"--rdzv-conf={','.join(f'{name}={value}' for name, value in conf.items())}",
        f"--local-addr={address}",
        *given.program,
    ]


def local_address(host: str, port: int) -> str:
    """The address by which this machine reaches `host`, and is reached from there; nothing is sent."""
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The network interface that has this address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address.partition("%")[0] == address for found in addresses):
            return name
    return None


def _environment(rank: int, address: str) -> dict[str, str]:
    base = {name: value for name, value in os.environ.items() if not FOREIGN.fullmatch(name)}
    interface = interface_of(address)
    own = {} if interface is None else {"GLOO_SOCKET_IFNAME": interface}
    # Ranks end with the process that is named here; the driver may be on another machine.
    return {**own, **base, NODE_RANK_VARIABLE: str(rank), DRIVER_PID_VARIABLE: str(os.getpid())}


def _wait(torchrun: subprocess.Popen[bytes]) -> int:
    parent = os.getppid()
    while True:
        try:
            return torchrun.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if os.getppid() == parent:
                continue
            torchrun.terminate()
            try:
                return torchrun.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                torchrun.kill()
                return torchrun.wait()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    words = list(sys.argv[1:] if arguments is None else arguments)
    # By hand: what the program is given may look like an option of ours, or hold a `--` of its own.
    own = words.index("--")
    parser = argparse.ArgumentParser(prog="python -m pilotkit.launch.agent", description=__doc__)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--nproc", type=int, required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--timeout", type=int, required=True)
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--phase", required=True)
    parser.add_argument("--node-rank", type=int)
    return parser.parse_args(words[:own], argparse.Namespace(program=words[own + 1 :]))


if __name__ == "__main__":
    raise SystemExit(main())
