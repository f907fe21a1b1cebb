"""The record: what one run of one stage found, in a shape that tomorrow's reader still understands.

`record.json` is the only thing that one stage hands to another. Metrics are flat; the unit is the suffix
(`_bytes`, `_seconds`, `_per_second`, `_hours`; bare is a ratio or a count) and each has an origin.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pilotkit.errors import RecordError

SCHEMA_VERSION = 1

STATUSES = (
    "running",  # the run is going on, or its driver died on another machine without a word
    "ok",
    "does_not_fit",  # out of memory: a result, not an error
    "mismatch",  # two runs that had to agree did not
    "failed",
    "refused",  # cannot be done here; nothing was started
    "preempted",
    "timed_out",
    "cancelled",  # the user ended it
    "vanished",  # never written, only found by who reads: its driver is gone and left no end
)
DONE = ("ok", "does_not_fit")
ORIGINS = ("measured", "estimated", "projected", "given")


@dataclass(frozen=True)
class PhaseRun:
    """One worker process group inside a run: what it was called, how long it took (seconds), how it ended."""

    name: str
    wall_seconds: float
    status: str


@dataclass(frozen=True)
class Failure:
    """Why a run is not ok: one sentence, then what is known about the cause."""

    summary: str
    cause: str = ""
    rank: int | None = None
    traceback: str = ""
    log: str = ""


class Metrics:
    """Numbers with their origins; refuses a number that is not finite, an unknown origin, and a name given twice."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.origins: dict[str, str] = {}

    def add(self, origin: str, values: Mapping[str, float | None] | None = None, /, **named: float | None) -> None:
        """Add numbers of one origin; `None` means not available and is left out."""
        assert origin in ORIGINS, origin
        for name, value in {**(values or {}), **named}.items():
            if value is None or not math.isfinite(value):
                continue
            assert name not in self.values, f"metric {name} is given twice"
            self.values[name] = value
            self.origins[name] = origin


@dataclass
class Record:
    """One run of one stage. Times are seconds, sizes bytes, `started_at` is ISO 8601 in UTC."""

    run_id: str
    stage: str
    status: str
    started_at: str
    wall_seconds: float = 0.0
    phases: list[PhaseRun] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    config_digest: str = ""
    lock_digest: str | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, str] = field(default_factory=dict)
    problem: Failure | None = None
    overrides: list[str] = field(default_factory=list)
    parent_run_id: str | None = None
    schema_version: int = SCHEMA_VERSION
    folder: str = ""
    """Where the record was read from. Not part of the file: a folder may be moved."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `record.json`, in the order of the fields."""
        plain = dataclasses.asdict(self)
        del plain["folder"]
        return {"schema_version": plain.pop("schema_version"), **plain}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], *, folder: str = "") -> Record:
        """Read plain data back.

        Raises RecordError on another schema version, and on a field that is missing or of a wrong kind.
        """
        version = plain.get("schema_version")
        if version != SCHEMA_VERSION:
            raise RecordError(
                f"{folder or 'record'}: schema version {version!r} is not known to this pilotkit "
                f"(it reads {SCHEMA_VERSION}); read it with the version that wrote it, or run the stage again"
            )
        known = {item.name for item in dataclasses.fields(cls)}
        values = {name: value for name, value in plain.items() if name in known}
        try:
            values["phases"] = [PhaseRun(**phase) for phase in values.get("phases", [])]
            values["problem"] = Failure(**values["problem"]) if values.get("problem") else None
            record = cls(**{**values, "folder": folder})
            _check_kinds(record)
            return record
        except TypeError as error:
            raise RecordError(f"{folder or 'record'}: not a record of this version ({error})") from error


_KINDS: dict[type | tuple[type, ...], tuple[str, ...]] = {
    str: ("run_id", "stage", "status", "started_at", "config_digest"),
    (int, float): ("wall_seconds",),
    dict: ("config", "provenance", "metrics", "origins", "details", "artifacts"),
    list: ("overrides",),
}


def _check_kinds(record: Record) -> None:
    """Raise TypeError when a value would trip its readers: they sort by start, add up metrics and look up statuses."""
    for kind, names in _KINDS.items():
        for name in names:
            value = getattr(record, name)
            if not isinstance(value, kind):
                raise TypeError(f"{name} is a {type(value).__name__}")
    if record.status not in STATUSES:
        raise TypeError(f"status {record.status!r} is none of {', '.join(STATUSES)}")
    for name, value in record.metrics.items():
        if not isinstance(value, (int, float)):
            raise TypeError(f"metric {name} is a {type(value).__name__}")
        if not math.isfinite(value):
            raise TypeError(f"metric {name} is {value}")
