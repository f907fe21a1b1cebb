"""From a composed configuration to a stage: one run, or one point of a sweep. Runs in the job of a sweep, too."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from pilotkit.config.load import load, load_file
from pilotkit.config.schema import PilotConfig
from pilotkit.errors import (
    EXIT_CONFIG,
    EXIT_FAILED,
    EXIT_OK,
    ConfigError,
    PilotkitError,
    Problem,
    RecordError,
    StageFailed,
)

# The records are imported where they are used: composing does not wait for them.
if TYPE_CHECKING:
    from pilotkit.records.points import Point
    from pilotkit.records.record import Record
    from pilotkit.records.run_dir import RunDir

SUBMITS_SWEEPS = Problem(
    "cluster",
    "slurm",
    "slurm with -m: sweeps are submitted, one point alone is a sweep of one",
    "add -m, or take cluster=local to run here",
)


def dispatch(composed: DictConfig) -> dict[str, Any] | None:
    """Run the stage. A single run raises how it ended; a point of a sweep writes it down and lets the others go on."""
    hydra = HydraConfig.get()
    launch_dir = Path(hydra.runtime.cwd)
    # As they were typed: an interpolation among them is the configuration's, and means nothing among Hydra's own.
    typed = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    assert isinstance(typed, list)
    overrides = [str(word) for word in typed]
    if hydra.mode != RunMode.MULTIRUN:
        config = load(composed, launch_dir=launch_dir)
        if config.stage == "sweep_status":
            return {"exit_code": _show_sweep(config)}
        if config.cluster.name == "slurm" and config.stage != "sweep_collect":
            raise ConfigError([SUBMITS_SWEEPS])
        record = _run(config, launch_dir=launch_dir, overrides=overrides)
        from pilotkit.records.record import DONE

        if record.status not in DONE:
            raise StageFailed(_ending(record))
        return None
    from pilotkit.records.points import Point, point_config, write_point

    folder = Path(hydra.runtime.output_dir)
    point = Point(index=int(hydra.job.num), overrides=overrides, driver_pid=os.getpid())
    write_point(folder, point)
    try:
        fixed = point_config(folder)
        config = load_file(fixed) if fixed else load(composed, launch_dir=launch_dir)
        _run(config, launch_dir=launch_dir, overrides=overrides, point=point, folder=folder)
    except ConfigError as error:
        point.problem = str(error)
        point.is_config_problem = True
        write_point(folder, point)
    return {"point": str(folder)}


def _show_sweep(config: PilotConfig) -> int:
    from pilotkit.stages.console import Console
    from pilotkit.stages.sweep_status import show

    return show(config, Console(sys.stdout))


def run_point(folder: Path) -> None:
    """Run one point in the job of a scheduler: its configuration and its history are in its folder.

    How it ended is in the record, and in the point where there could be none. Raises what ends the job.
    """
    from pilotkit.records.points import point_config, read_point, write_point
    from pilotkit.records.sweeps import read_sweep

    point = read_point(folder)
    fixed = point_config(folder)
    assert point is not None, f"{folder} holds no point"
    assert fixed is not None, f"{folder} holds no configuration"
    sweep = read_sweep(folder.parent)
    attempt = _attempt(number=len(point.attempts) + 1)
    earlier = _earlier(point)
    point.attempts.append(attempt)
    point.problem, point.run_dir = None, None
    write_point(folder, point)
    provenance = {
        "slurm": {**attempt, "removed_variables": sweep.removed_variables},
        "code": sweep.code,
    }
    try:
        _run(
            load_file(fixed),
            launch_dir=Path(point.launch_dir or Path.cwd()),
            overrides=point.overrides,
            point=point,
            folder=folder,
            provenance=provenance,
            earlier=earlier,
        )
    except PilotkitError as error:
        point.problem = str(error)
        point.is_config_problem = isinstance(error, ConfigError)
        write_point(folder, point)
        raise SystemExit(error.exit_code) from error


def _attempt(*, number: int) -> dict[str, Any]:
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return {
        "number": number,
        "job_id": f"{array}_{task}" if array else os.environ.get("SLURM_JOB_ID"),
        "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "nodes": os.environ.get("SLURM_JOB_NODELIST"),
        "started_at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "run_dir": None,
    }


def _earlier(point: Point) -> RunDir | None:
    """The folder of the attempt before, unless it has said its last word."""
    from pilotkit.records.run_dir import RunDir
    from pilotkit.records.truths import INTERRUPTED

    if point.run_dir is None:
        return None
    run_dir = RunDir(Path(point.run_dir))
    try:
        return run_dir if run_dir.read_record().status in INTERRUPTED else None
    except RecordError:
        return None


def tell_sweep(folder: Path) -> int:
    """Print one row a point, from the disk, and return the exit code of the sweep."""
    from pilotkit.records.points import read_points
    from pilotkit.records.record import DONE
    from pilotkit.records.sweeps import has_sweep
    from pilotkit.report.tables import sweep_table, varying_keys
    from pilotkit.stages.console import Console

    if has_sweep(folder):
        return _tell_submitted(folder)
    points = read_points(folder)
    if not points:
        return EXIT_FAILED  # ended before there was anything to tell; the error says why
    records = [point.record() for point in points]
    console = Console(sys.stdout)
    console.table(sweep_table(records, varying=varying_keys([point.overrides for point in points])))
    counts = {
        status: sum(record.status == status for record in records) for status in sorted({r.status for r in records})
    }
    words = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items())
    for line in _frontier_lines(folder):
        console.line(line)
    console.line(f"{len(points)} points: {words}. Records: {folder}")
    if any(
        record.status not in DONE and not point.is_config_problem for point, record in zip(points, records, strict=True)
    ):
        return EXIT_FAILED
    return EXIT_CONFIG if any(point.is_config_problem for point in points) else EXIT_OK


def _frontier_lines(folder: Path) -> list[str]:
    """What a search over this sweep has found; nothing where it was none."""
    from pilotkit.records.frontiers import read_frontier

    frontier = read_frontier(folder)
    if frontier is None:
        return []
    found = [f"  {fixed}: {words}" for fixed, words in frontier.lines()]
    return [f"largest {frontier.over} that fits:", *found, f"  {frontier.sentence}"]


def _tell_submitted(folder: Path) -> int:
    """What was queued; in waiting mode then what became of it."""
    from pilotkit.records.sweeps import read_sweep
    from pilotkit.stages.console import Console
    from pilotkit.stages.sweep_view import submission_lines

    try:
        sweep = read_sweep(folder)
    except RecordError:
        return EXIT_FAILED  # refused before there was anything to tell; the error says why
    if sweep.state != "submitted":
        return EXIT_FAILED
    console = Console(sys.stdout)
    for line in submission_lines(sweep, folder):
        console.line(line)
    found = _frontier_lines(folder)
    for line in found:
        console.line(line)
    # A search has waited for every round of its own.
    if not sweep.wait and not found:
        return EXIT_OK
    from pilotkit.stages.sweep_wait import wait

    return wait(folder, console)


def _run(
    config: PilotConfig,
    *,
    launch_dir: Path,
    overrides: list[str],
    point: Point | None = None,
    folder: Path | None = None,
    provenance: Mapping[str, Any] | None = None,
    earlier: RunDir | None = None,
) -> Record:
    # Only now: a wrong configuration is told without waiting for these.
    from pilotkit.records.points import write_point
    from pilotkit.stages.console import Console
    from pilotkit.stages.execute import Order, announce, execute
    from pilotkit.stages.show import show

    def note_run_dir(run_dir: RunDir) -> None:
        if point is not None and folder is not None:
            point.run_dir = str(run_dir.path)
            if point.attempts:
                point.attempts[-1]["run_dir"] = point.run_dir
            write_point(folder, point)

    console = Console(sys.stdout)
    order = Order(
        config,
        launch_dir,
        overrides,
        console,
        on_created=note_run_dir,
        provenance=provenance or {},
        sweep_dir=folder.parent if folder is not None else None,
        earlier=earlier,
    )
    if config.stage == "all":
        from pilotkit.stages.all import run_all

        return run_all(order)
    # A further node of a pilot takes its part in it; the pilot's record is that of the first.
    record = execute("pilot_node" if config.cluster.node_rank else config.stage, order)
    if point is None:
        show(record, console)
    announce(record, console, with_reason=point is not None)
    console.line(f"  record: {Path(config.output_dir) / config.name / config.stage / record.run_id}")
    return record


def _ending(record: Record) -> str:
    problem = record.problem
    text = f"{record.stage} {record.status.replace('_', ' ')}: {problem.summary if problem else 'it left no reason'}"
    return f"{text}\n  {problem.cause}" if problem and problem.cause else text
