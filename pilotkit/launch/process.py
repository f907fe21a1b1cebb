"""One process group from start to certain end: whatever happens to the driver, no process of the group stays behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from pilotkit.errors import Interrupted
from pilotkit.launch import standby
from pilotkit.variables import RUN_DIR_VARIABLE

POLL_SECONDS = 0.05
# torchrun passes SIGTERM on and waits for its ranks; a rank in a collective needs a moment.
GRACE_SECONDS = 8.0
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_to_end(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    log: Path,
    timeout_seconds: float | None,
    while_running: Callable[[], None],
    ask_to_stop: Callable[[], None] | None = None,
) -> tuple[int | None, Interrupted | None]:
    """Run a command in its own session, its output in `log`; returns its exit code, None when the time was up.

    `while_running` is called about twenty times a second. Any exception, Ctrl-C included, ends the processes first;
    but where the command can be asked to stop, an interruption that has patience waits for it to end by itself and is
    returned beside its exit code.
    """
    with open(log, "ab") as output, _held_back(signal.SIGUSR2 if ask_to_stop else None):
        waiting = standby.take(command, variables=environment, folder=folder, log=log)
        process = waiting or subprocess.Popen(  # noqa: S603 - the command is built in pilotkit.launch.command
            command,
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        try:
            return _poll(process, while_running, timeout_seconds=timeout_seconds), None
        except Interrupted as interruption:
            if ask_to_stop is None or interruption.patience_seconds <= 0:
                raise
            ask_to_stop()
            code = _poll(process, while_running, timeout_seconds=interruption.patience_seconds)
            return code, interruption
    finally:
        with _undisturbed():
            _end(process)
            end_leftovers(environment.get(RUN_DIR_VARIABLE, ""))


@contextlib.contextmanager
def _held_back(number: signal.Signals | None) -> Iterator[None]:
    """What is started meanwhile never gets this signal, which would kill it; to us it comes afterwards."""
    if number is None:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _poll(
    process: subprocess.Popen[bytes], while_running: Callable[[], None], *, timeout_seconds: float | None
) -> int | None:
    started = time.monotonic()
    while process.poll() is None:
        if timeout_seconds is not None and time.monotonic() - started > timeout_seconds:
            return None
        while_running()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
    while_running()
    return process.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def end_leftovers(run_dir: str) -> None:
    """Kill what still carries this run's mark: torchrun gives each rank a session of its own, which killpg misses."""
    if not run_dir:
        return
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(RUN_DIR_VARIABLE) == run_dir:
                process.kill()
                left.append(process)
    psutil.wait_procs(left, timeout=GRACE_SECONDS)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C, or the scheduler's next signal, must not cut the cleaning-up short.

    Only the main thread may change signals.
    """
    try:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING_SIGNALS}
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
