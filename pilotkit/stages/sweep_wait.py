"""Waiting for a submitted sweep (`cluster.wait=true`): a live table, and a question when Ctrl-C is pressed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from pilotkit.errors import EXIT_INTERRUPTED
from pilotkit.launch.follow import cancel_sweep, wait_for_all
from pilotkit.records.sweeps import read_sweep
from pilotkit.records.truths import Truth
from pilotkit.report.tables import sweep_table, varying_keys
from pilotkit.stages.console import Console
from pilotkit.stages.sweep_view import exit_code, overrides_of, show_truths, summary


def wait(sweep_dir: Path, console: Console) -> int:
    """Follow the sweep to its end and return its exit code."""
    try:
        truths = _follow(sweep_dir, console)
    except KeyboardInterrupt as stopped:
        if type(stopped) is not KeyboardInterrupt:  # another signal, as when the terminal is closed: nobody to ask
            _tell_that_jobs_go_on(sweep_dir, console)
            raise
        return _ask(sweep_dir, console)
    show_truths(truths, console)
    stuck = [truth for truth in truths if truth.is_stuck]
    if stuck:
        words = ", ".join(f"{truth.job_id} ({truth.cause})" for truth in stuck)
        console.line(f"not waited for, as only a person can let them go on: {words}", style="yellow")
    console.line(f"{summary(truths)}. Sweep folder: {sweep_dir}")
    return max(exit_code(truths), int(any(not truth.is_final for truth in truths)))


def _follow(sweep_dir: Path, console: Console) -> list[Truth]:
    with console.live() as update:
        last = ""

        def show(truths: Sequence[Truth]) -> None:
            nonlocal last
            words = summary(truths)
            rows = [truth.row() for truth in truths]
            if update is not None:
                update(sweep_table(rows, varying=varying_keys(overrides_of(truths))))
            elif words != last:
                console.line(f"  {words}")
            last = words

        return wait_for_all(sweep_dir, show=show)


def _ask(sweep_dir: Path, console: Console) -> int:
    """Leave the jobs running or cancel them. Without a terminal nobody can answer: they are left."""
    answer = "l"
    if sys.stdin.isatty():
        console.line("Ctrl-C: [l]eave the jobs running, or [c]ancel them? (l)")
        try:
            answer = (sys.stdin.readline() or "l").strip().lower()[:1] or "l"
        except KeyboardInterrupt:
            answer = "l"
    if answer == "c":
        cancelled = cancel_sweep(read_sweep(sweep_dir))
        console.line(f"cancelled: {', '.join(cancelled) or 'nothing was left to cancel'}")
    else:
        _tell_that_jobs_go_on(sweep_dir, console)
    return EXIT_INTERRUPTED


def _tell_that_jobs_go_on(sweep_dir: Path, console: Console) -> None:
    with contextlib.suppress(OSError):  # a terminal that is gone
        console.line(f"the jobs go on; follow them with pilotkit stage=sweep_status, folder {sweep_dir}")
