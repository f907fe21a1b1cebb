"""Stage `sweep_status`: where does a sweep stand? Only looks: leaves no record and changes nothing."""

from __future__ import annotations

from pilotkit.config.schema import PilotConfig
from pilotkit.launch.follow import find_any_truths
from pilotkit.stages.console import Console
from pilotkit.stages.sweep_view import chosen_sweep, exit_code, show_truths, summary


def show(config: PilotConfig, console: Console) -> int:
    """Print one row a point and what to do next; returns the exit code of the sweep as far as it is known."""
    sweep_dir = chosen_sweep(config)
    _, truths, complaint = find_any_truths(sweep_dir)
    show_truths(truths, console)
    if complaint:
        console.line(f"Slurm does not answer: {complaint}", style="yellow")
    console.line(f"{summary(truths)}. Sweep folder: {sweep_dir}")
    return exit_code(truths)
