"""The command line of a worker: a run directory and a phase name, and nothing that could disagree with `run.yaml`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def worker_command(run_dir: Path, *, phase: str, nproc: int, torchrun: bool) -> list[str]:
    """`python -m pilotkit.worker`, under torchrun where ranks have to find each other.

    `--standalone` takes a free port, so that two pilots on one node do not meet.
    """
    worker = worker_program(run_dir, phase=phase)
    if not torchrun:
        assert nproc == 1, "several processes need torchrun"
        return [sys.executable, *worker]
    return _torchrun(worker, nproc=nproc)


def worker_program(run_dir: Path, *, phase: str) -> list[str]:
    """What torchrun starts as a rank of a phase."""
    return ["-m", "pilotkit.worker", str(run_dir), phase]


def script_command(script: Path, *, args: Sequence[str], nproc: int, tokens_per_step: int | None) -> list[str]:
    """A user's own script under torchrun, with its own arguments; `tokens_per_step` has its optimizer watched."""
    return _torchrun(script_program(script, args=args, tokens_per_step=tokens_per_step), nproc=nproc)


def script_program(script: Path, *, args: Sequence[str], tokens_per_step: int | None) -> list[str]:
    """What torchrun starts as a rank of a user's own script."""
    if tokens_per_step is None:
        return [str(script), *args]
    return ["-m", "pilotkit.meter.watch_script", str(tokens_per_step), str(script), *args]


def _torchrun(program: Sequence[str], *, nproc: int) -> list[str]:
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr=127.0.0.1",
        f"--nproc-per-node={nproc}",
        "--max-restarts=0",
        *program,
    ]


def describe_devices_command() -> list[str]:
    """A process that prints, as JSON, what this machine's torch sees."""
    return [sys.executable, "-m", "pilotkit.worker", "--describe-devices"]
