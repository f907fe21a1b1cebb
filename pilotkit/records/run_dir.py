"""The run directory: the only place that knows what the files of a run are called.

<output_dir>/<name>/<stage>/<run_id>/
    run.yaml            the configuration, read by every worker
    overrides.txt       what the user typed, one a line
    driver.log          what the driver did, in every attempt
    record.json         what was found
    record-<n>.json     what attempt n left, where the run went on after it
    report.html         the page (stages `all` and `report`); beside it, for other readers,
                        report.md, report.csv and, where pyarrow is installed, report.parquet
    trackers/           the figures in the files of TensorBoard, MLflow or W&B (stage `report`, when asked for)
    compare.html        this study beside another one (stage `report`, when asked for)
    points.csv, points.parquet   one row a point (stage `sweep_collect`)
    lock.yaml           what was pinned (stage `lock`; `restore` has a copy for its workers)
    asked.json          what a worker is asked beside the configuration: measured shapes, a limit (stage `estimate`)
    estimate.csv        one row a point of the grid (stage `estimate`)
    uncommitted.diff    what git did not know of it (stage `lock`)
    checkpoints/        what `prove`, `pilot` and `restore` saved
    again/              the run that was run again (stage `replay`)
    phases/<phase>/     one folder for each worker start:
        log.txt         everything its processes printed
        progress.jsonl  one line a finished step
        result.json     written by rank 0 when the phase is done
        meter.json, meter-<rank>.json   what StepMeter measured in a user's own script
        trace-<rank>.jsonl              what RunTrace left of a user's own script, an event a line
        gradients.pt    first gradients of the fp32 reference, until the candidate was compared with them
        error-<rank>.json   written by a rank that failed
        stop                there once the worker was told to save and end
        steps-<n>.json      what was counted up to step n, beside the checkpoint of that step
        attempt-<n>/        log, progress and errors of an attempt that did not get through
"""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotkit.errors import OutputError, RecordError
from pilotkit.records import atomic
from pilotkit.records.record import Record

RECORD_FILE = "record.json"

# Held while a run goes on and given back before its last record is written: a disk that the run
# itself filled still has room to say so.
RESERVE_BYTES = 64 * 1024


def new_run_id() -> str:
    """Sorts by time, and is unique without asking anybody: `20260131-235959-1a2b3c`."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


@dataclass(frozen=True)
class PhaseDir:
    """The folder of one worker start."""

    path: Path

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def progress(self) -> Path:
        return self.path / "progress.jsonl"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def meter(self) -> Path:
        """Where rank 0's StepMeter of a user's own script writes; other ranks write `meter-<rank>.json` beside it."""
        return self.path / "meter.json"

    def read_meters(self) -> list[dict[str, Any]]:
        """What the ranks' meters left, in the order of ranks; a file that is cut short is passed over."""
        others = sorted(self.path.glob("meter-*.json"), key=lambda path: int(path.stem.rpartition("-")[2]))
        found = []
        for path in (self.meter, *others):
            try:
                found.append(json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError):
                continue
        return found

    def read_traces(self) -> dict[str, list[dict[str, Any]]]:
        """The events of each rank of a user's own script, by rank; a line that is cut short is the last one."""
        found: dict[str, list[dict[str, Any]]] = {}
        for path in sorted(self.path.glob("trace-*.jsonl"), key=lambda path: int(path.stem.rpartition("-")[2])):
            lines = found.setdefault(path.stem.rpartition("-")[2], [])
            for text in path.read_text(encoding="utf-8").splitlines():
                try:
                    lines.append(json.loads(text))
                except ValueError:
                    break
        return found

    @property
    def gradients(self) -> Path:
        return self.path / "gradients.pt"

    def error(self, rank: int) -> Path:
        return self.path / f"error-{rank}.json"

    def errors(self) -> list[dict[str, Any]]:
        """What the ranks wrote about their own deaths; a file that is cut short is passed over."""
        found = []
        for path in sorted(self.path.glob("error-*.json")):
            try:
                found.append(json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError):
                continue
        return found

    @property
    def stop(self) -> Path:
        """Its being there asks the worker to save and end."""
        return self.path / "stop"

    def steps(self, step: int) -> Path:
        """What was counted up to a step at which there is a checkpoint."""
        return self.path / f"steps-{step}.json"

    def attempts(self) -> list[Path]:
        """One folder for each attempt that did not get through."""
        return sorted(self.path.glob("attempt-*"))

    def set_aside(self) -> None:
        """Keep what an attempt that did not get through has left, so that the next one's own is not mixed with it."""
        self.stop.unlink(missing_ok=True)
        left = [path for path in (self.log, self.progress, self.result) if path.exists()]
        left += sorted(self.path.glob("error-*.json"))
        if not left:
            return
        folder = self.path / f"attempt-{1 + len(self.attempts())}"
        folder.mkdir()
        for path in left:
            path.rename(folder / path.name)

    def read_result(self) -> dict[str, Any] | None:
        """What rank 0 left, or None when the phase did not get that far."""
        try:
            result: dict[str, Any] = json.loads(self.result.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return result


@dataclass(frozen=True)
class RunDir:
    """The folder of one run. Opening one does not touch the disk; `create` makes a new one."""

    path: Path

    @classmethod
    def create(cls, output_dir: Path, *, name: str, stage: str) -> RunDir:
        """Make a folder that nobody else has, however many start in the same second.

        Raises OutputError when the output folder cannot be written.
        """
        parent = output_dir / name / stage
        try:
            parent.mkdir(parents=True, exist_ok=True)
            while True:
                path = parent / new_run_id()
                try:
                    path.mkdir()
                    break
                except FileExistsError:
                    continue
            run_dir = cls(path)
            run_dir._reserve.write_bytes(b"\0" * RESERVE_BYTES)
        except OSError as error:
            raise OutputError(
                f"output_dir={output_dir} cannot be written: {error.strerror or error} ({error.filename or parent}); "
                "give another folder with output_dir=... "
            ) from error
        return run_dir

    def reopen(self) -> None:
        """Go on in the folder of an attempt that was ended: its record is kept beside the one that will be written.

        Raises OutputError when the folder cannot be written.
        """
        number = 1 + len(list(self.path.glob("record-*.json")))
        try:
            if self.record.exists():
                self.record.rename(self.path / f"record-{number}.json")
            self._reserve.write_bytes(b"\0" * RESERVE_BYTES)
        except OSError as error:
            raise OutputError(f"{self.path} cannot be written: {error.strerror or error}") from error

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def config(self) -> Path:
        return self.path / "run.yaml"

    @property
    def overrides(self) -> Path:
        return self.path / "overrides.txt"

    @property
    def log(self) -> Path:
        return self.path / "driver.log"

    @property
    def record(self) -> Path:
        return self.path / RECORD_FILE

    @property
    def page(self) -> Path:
        return self.path / "report.html"

    @property
    def table_csv(self) -> Path:
        return self.path / "points.csv"

    @property
    def table_parquet(self) -> Path:
        return self.path / "points.parquet"

    @property
    def page_markdown(self) -> Path:
        return self.path / "report.md"

    @property
    def page_csv(self) -> Path:
        return self.path / "report.csv"

    @property
    def page_parquet(self) -> Path:
        return self.path / "report.parquet"

    @property
    def trackers(self) -> Path:
        return self.path / "trackers"

    @property
    def comparison(self) -> Path:
        return self.path / "compare.html"

    @property
    def lock(self) -> Path:
        return self.path / "lock.yaml"

    @property
    def asked(self) -> Path:
        return self.path / "asked.json"

    @property
    def row_lengths(self) -> Path:
        return self.path / "row_lengths.json"

    @property
    def estimate_csv(self) -> Path:
        return self.path / "estimate.csv"

    @property
    def difference(self) -> Path:
        return self.path / "uncommitted.diff"

    @property
    def again(self) -> Path:
        return self.path / "again"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def _reserve(self) -> Path:
        return self.path / ".reserve"

    def phase(self, name: str) -> PhaseDir:
        return PhaseDir(self.path / "phases" / name)

    def write_record(self, record: Record) -> None:
        """Publish the record, whole or not at all. Raises OutputError when the disk refuses even that."""
        if record.status != "running":
            self._reserve.unlink(missing_ok=True)
        try:
            atomic.write_json(self.record, record.to_dict())
        except OSError as error:
            raise OutputError(f"{self.record} cannot be written: {error.strerror or error}") from error

    def read_record(self) -> Record:
        """Raises RecordError when there is none, when it is damaged, or of another version."""
        try:
            text = self.record.read_text(encoding="utf-8")
            plain = json.loads(text)
        except FileNotFoundError as error:
            raise RecordError(f"{self.path}: no {RECORD_FILE} here") from error
        except (OSError, ValueError) as error:
            raise RecordError(f"{self.record}: cannot be read ({error})") from error
        if not isinstance(plain, dict):
            raise RecordError(f"{self.record}: not a record (its content is a {type(plain).__name__})")
        return Record.from_dict(plain, folder=os.fspath(self.path))
