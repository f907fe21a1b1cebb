"""A worker that imports torch while the driver still reads the configuration: a second saved where nothing is trained.

Started by `cli` for a command that will want one, taken by `process` in place of a new process when what it was started
with is exactly what a new one would get, and ended in any case. A stage that measures never takes one: what runs beside
the driver would be measured too.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pilotkit.launch.environment import worker_environment
from pilotkit.variables import RUN_DIR_VARIABLE

STAGES = ("estimate",)
"""Stages whose worker computes nothing."""
TOLD = frozenset({RUN_DIR_VARIABLE, "HYDRA_FULL_ERROR"})
"""Variables that nothing reads before the worker is told them."""

_waiting: list[Standby] = []


class Standby:
    """One process that waits; its folder and variables are those of now."""

    def __init__(self) -> None:
        self.folder = Path.cwd()
        self.variables = _apart_from_told(
            worker_environment(os.environ, run_dir=Path(), usable_cpus=1, nproc=1).variables
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pilotkit.worker", "--standby"],
            env=self.variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def tell(self, arguments: Sequence[str], *, variables: Mapping[str, str], log: Path) -> bool:
        """Hand over its work; False when it has died meanwhile."""
        assert self.process.stdin is not None
        line = json.dumps({"arguments": list(arguments), "variables": dict(variables), "log": os.fspath(log)})
        try:
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.close()
        except BrokenPipeError:
            return False
        return self.process.poll() is None

    def end(self) -> None:
        """It holds nothing yet: killed at once."""
        self.process.kill()
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()


def start_for(arguments: Sequence[str]) -> None:
    """Start one if these arguments ask for a stage in `STAGES`, here and once."""
    stages = [argument.removeprefix("stage=") for argument in arguments if argument.startswith("stage=")]
    elsewhere = any(argument.startswith(("-", "cluster=", "hydra/launcher=")) for argument in arguments)
    if stages and stages[-1] in STAGES and not elsewhere:
        _waiting.append(Standby())


def take(
    command: Sequence[str], *, variables: Mapping[str, str], folder: Path, log: Path
) -> subprocess.Popen[bytes] | None:
    """The waiting process, told to be `command`; None where there is none, or where a new one would be another."""
    if not _waiting or command[:3] != [sys.executable, "-m", "pilotkit.worker"]:
        return None
    standby = _waiting.pop()
    if (
        standby.folder == folder
        and standby.variables == _apart_from_told(variables)
        and standby.tell(command[3:], variables=variables, log=log)
    ):
        return standby.process
    standby.end()
    return None


def dismiss() -> None:
    """End one that nobody took."""
    while _waiting:
        _waiting.pop().end()


def _apart_from_told(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name not in TOLD}
