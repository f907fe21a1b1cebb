"""The points of a sweep: one small file each, which leads from the sweep's folder to the run's record.

<sweep folder>/<index>/point.json    what was overridden, where its run is, what went wrong
<sweep folder>/<index>/config.yaml   the configuration as it was when the point was submitted, where it runs later
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilotkit.errors import RecordError
from pilotkit.records import atomic
from pilotkit.records.record import Failure, Record
from pilotkit.records.run_dir import RunDir

POINT_FILE = "point.json"
CONFIG_FILE = "config.yaml"


@dataclass
class Point:
    """One point: what was overridden, where its run is, and what kept it from having one."""

    index: int
    overrides: list[str] = field(default_factory=list)
    run_dir: str | None = None
    problem: str | None = None
    is_config_problem: bool = False
    driver_pid: int | None = None
    launch_dir: str | None = None
    """Where the sweep was started, for a job that runs elsewhere."""
    attempts: list[dict[str, Any]] = field(default_factory=list)
    """One entry for each time that a scheduler started the point: number, job_id, node, started_at, run_dir."""

    def record(self) -> Record:
        """The record of the point's run, or one that says why there is none."""
        if self.run_dir is not None:
            try:
                record = RunDir(Path(self.run_dir)).read_record()
            except RecordError as error:
                return self._stand_in("failed", str(error))
            if record.status != "running" or (self.problem is None and self._is_running()):
                return record
            record.status = "failed"
            record.problem = Failure(self.problem or "its process ended without a word")
            return record
        if self.problem is not None:
            return self._stand_in("refused" if self.is_config_problem else "failed", self.problem)
        return self._stand_in("running" if self._is_running() else "failed", "its process ended without a word")

    def _stand_in(self, status: str, words: str) -> Record:
        problem = None if status == "running" else Failure(words)
        return Record(f"point {self.index}", "", status, "", problem=problem, overrides=self.overrides)

    def _is_running(self) -> bool:
        # Our own points are over when they are read: a point of this process cannot be going on meanwhile.
        if self.driver_pid is None or self.driver_pid == os.getpid():
            return False
        try:
            os.kill(self.driver_pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def write_point(folder: Path, point: Point) -> None:
    """Publish the state of a point."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write_json(folder / POINT_FILE, dataclasses.asdict(point))


def write_point_config(folder: Path, text: str) -> None:
    """Fix the configuration of a point that another process will run, perhaps hours later."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write_text(folder / CONFIG_FILE, text)


def point_config(folder: Path) -> Path | None:
    """The file with the configuration that was fixed at submission, if there is one."""
    path = folder / CONFIG_FILE
    return path if path.is_file() else None


def read_point(folder: Path) -> Point | None:
    """The point in this folder; None when there is none that can be read."""
    try:
        return Point(**json.loads((folder / POINT_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def read_points(sweep_dir: Path) -> list[Point]:
    """All points of a sweep in their order; what cannot be read is passed over."""
    found = [read_point(path.parent) for path in sweep_dir.glob(f"*/{POINT_FILE}")]
    return sorted((point for point in found if point is not None), key=lambda point: point.index)
