"""Find records under the output folder. Reads the disk each time; keeps no index that could be wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pilotkit.errors import RecordError
from pilotkit.records.owner import Owner
from pilotkit.records.record import Failure, Record
from pilotkit.records.run_dir import RECORD_FILE, RunDir


@dataclass
class Found:
    """Records in the order of their start, and what could not be read with the reason."""

    records: list[Record] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def find_records(output_dir: Path, *, name: str | None = None, stage: str | None = None) -> Found:
    """All records of a study (or of every study), oldest first. One that is damaged is listed, never raised.

    A run whose driver is gone for certain reads vanished, whatever its file still says.
    """
    found = Found()
    for path in _record_files(output_dir, name=name, stage=stage):
        try:
            found.records.append(_settled(RunDir(path.parent).read_record()))
        except RecordError as error:
            found.unreadable.append(str(error))
    found.records.sort(key=lambda record: (record.started_at, record.run_id))
    return found


def _settled(record: Record) -> Record:
    """A run that was still going on when its driver was killed can no longer say so itself."""
    driver = Owner.from_plain(record.provenance.get("driver"))
    if record.status == "running" and driver is not None and driver.is_gone:
        words = f"its driver (process {driver.pid} on {driver.host}) ended without a word"
        record.status, record.problem = "vanished", Failure(words)
    return record


def newest_by_stage(records: list[Record], *, config_digest: str) -> dict[str, Record]:
    """The newest record of each stage for one configuration, whatever its status: a failure is evidence too.

    A run that is still marked running is passed over, as it has nothing to say yet.
    """
    newest: dict[str, Record] = {}
    for record in records:
        if record.config_digest == config_digest and record.status != "running":
            newest[record.stage] = record
    return newest


def _record_files(output_dir: Path, *, name: str | None, stage: str | None) -> Iterator[Path]:
    pattern = f"{_literal(name)}/{_literal(stage)}/*/{RECORD_FILE}"
    return output_dir.glob(pattern)


def _literal(part: str | None) -> str:
    """A path part for glob: everything when None, else exactly this name."""
    if part is None:
        return "*"
    return "".join(f"[{char}]" if char in "*?[" else char for char in part)
