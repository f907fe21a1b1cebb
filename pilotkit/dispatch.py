"""From a composed configuration to a stage: one run, or one point of a sweep. Runs in the job of a sweep, too."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from pilotkit.config.load import load, load_file
from pilotkit.config.schema import PilotConfig
from pilotkit.errors import EXIT_CONFIG, EXIT_FAILED, EXIT_OK, ConfigError, StageFailed
from pilotkit.records.points import Point, point_config, read_points, write_point
from pilotkit.records.record import DONE, Record


def dispatch(composed: DictConfig) -> dict[str, Any] | None:
    """Run the stage. A single run raises how it ended; a point of a sweep writes it down and lets the others go on."""
    hydra = HydraConfig.get()
    launch_dir = Path(hydra.runtime.cwd)
    overrides = list(hydra.overrides.task)
    if hydra.mode != RunMode.MULTIRUN:
        record = _run(load(composed, launch_dir=launch_dir), launch_dir=launch_dir, overrides=overrides)
        if record.status not in DONE:
            raise StageFailed(_ending(record))
        return None
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


def tell_sweep(folder: Path) -> int:
    """Print one row a point, from the disk, and return the exit code of the sweep."""
    from pilotkit.report.tables import sweep_table, table_console

    points = read_points(folder)
    records = [point.record() for point in points]
    console = table_console(sys.stdout)
    console.print()
    console.print(sweep_table(records, varying=_varying([point.overrides for point in points])))
    counts = {
        status: sum(record.status == status for record in records) for status in sorted({r.status for r in records})
    }
    words = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items())
    text = f"\n{len(points)} points: {words or 'none was started'}. Records: {folder}"
    console.print(text, soft_wrap=True, markup=False, emoji=False, highlight=False)
    if not points or any(
        record.status not in DONE and not point.is_config_problem for point, record in zip(points, records, strict=True)
    ):
        return EXIT_FAILED
    return EXIT_CONFIG if any(point.is_config_problem for point in points) else EXIT_OK


def _run(
    config: PilotConfig,
    *,
    launch_dir: Path,
    overrides: list[str],
    point: Point | None = None,
    folder: Path | None = None,
) -> Record:
    # Only now: a wrong configuration is told without waiting for these.
    from pilotkit.records.run_dir import RunDir
    from pilotkit.stages.all import run_all
    from pilotkit.stages.console import Console
    from pilotkit.stages.execute import Order, announce, execute

    def note_run_dir(run_dir: RunDir) -> None:
        if point is not None and folder is not None:
            point.run_dir = str(run_dir.path)
            write_point(folder, point)

    console = Console(sys.stdout)
    order = Order(config, launch_dir, overrides, console, on_created=note_run_dir)
    if config.stage == "all":
        return run_all(order)
    record = execute(config.stage, order)
    announce(record, console, with_reason=point is not None)
    console.line(f"  record: {Path(config.output_dir) / config.name / config.stage / record.run_id}")
    return record


def _ending(record: Record) -> str:
    problem = record.problem
    text = f"{record.stage} {record.status.replace('_', ' ')}: {problem.summary if problem else 'it left no reason'}"
    return f"{text}\n  {problem.cause}" if problem and problem.cause else text


def _varying(overrides: Sequence[Sequence[str]]) -> list[str]:
    """The names that do not have the same value in every point, in the order in which they were typed."""
    values: dict[str, set[str]] = {}
    for words in overrides:
        for word in words:
            name, _, value = word.lstrip("+").partition("=")
            values.setdefault(name, set()).add(value)
    return [name for name, found in values.items() if len(found) > 1]
