"""The history of estimates beside measurements: one small file a measured run, by hardware and family of models.

<output_dir>/calibration/<hardware>/<family>/<key>.json

Written by stage `estimate` when it has traced what was measured, and never changed; read by every later estimate. One
file each, so that the points of a sweep may write at once, and a history may be copied from one machine to another.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotkit.errors import OutputError
from pilotkit.records import atomic

CALIBRATION_FOLDER = "calibration"
COMPARISON_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Comparison:
    """One measured run and what the trace of the same shape says. Bytes and seconds; uncorrected."""

    key: str
    source: str
    """Where the measurement comes from, in words: a run, or a row of a file."""
    measured_at: str
    hardware: str
    device_type: str
    family: str
    """Type of the model."""
    number_format: str
    """Of the peak that matrix products are counted against: fp32, bf16, ..."""
    compiled: bool
    rates: dict[str, float]
    """The hardware option's peaks at that time; empty where it names none."""
    efficiency: dict[str, float]
    """What was assumed of each class of kernels: matmul, attention, elementwise, link."""
    shape: dict[str, Any]
    """strategy, num_devices, micro_batch_size, seq_len, grad_accum_steps."""
    work: dict[str, Any]
    estimated: dict[str, float]
    measured: dict[str, float]
    spread: float = 0.0
    told: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What an estimate said before the run was measured: run_id, step_seconds, device_used_bytes, calibration."""

    @property
    def words(self) -> str:
        """`ddp on 8, 4 x 2048`."""
        shape = self.shape
        devices = "" if shape["num_devices"] == 1 else f" on {shape['num_devices']}"
        accumulated = f" x {shape['grad_accum_steps']}" if shape["grad_accum_steps"] > 1 else ""
        return f"{shape['strategy']}{devices}, {shape['micro_batch_size']} x {shape['seq_len']}{accumulated}"


def write_comparison(output_dir: Path, found: Comparison) -> None:
    """Raises OutputError when the disk refuses."""
    path = output_dir / CALIBRATION_FOLDER / _part(found.hardware) / _part(found.family) / f"{_part(found.key)}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_json(path, {"schema_version": COMPARISON_SCHEMA_VERSION, **dataclasses.asdict(found)})
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error


def read_comparisons(output_dir: Path) -> tuple[list[Comparison], list[str]]:
    """All of them, oldest measurement first, and what could not be read with the reason."""
    found, unreadable = [], []
    for path in sorted((output_dir / CALIBRATION_FOLDER).glob("*/*/*.json")):
        try:
            found.append(_from_plain(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError) as error:
            unreadable.append(f"{path}: {error}")
    return sorted(found, key=lambda item: (item.measured_at, item.key)), unreadable


def _from_plain(plain: Mapping[str, Any]) -> Comparison:
    """Raises TypeError for what this version does not know."""
    version = plain.get("schema_version")
    if version != COMPARISON_SCHEMA_VERSION:
        raise TypeError(f"schema version {version!r} is not known (this pilotkit reads {COMPARISON_SCHEMA_VERSION})")
    return Comparison(**{name: value for name, value in plain.items() if name != "schema_version"})


def _part(text: str) -> str:
    """A name as a part of a path."""
    return re.sub(r"[^\w.+-]", "_", text).lstrip(".") or "_"
