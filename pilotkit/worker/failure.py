"""What a rank leaves when it fails: one JSON file with the time, so that the first of several failures can be told."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from pilotkit.errors import ConfigError, PilotkitError
from pilotkit.records import atomic
from pilotkit.records.run_dir import PhaseDir

# The folder of our own functions: a user's `load` or `evaluate` is none of them.
TRAIN = ("pilotkit", "train")


def write(phase: PhaseDir, *, rank: int, error: BaseException) -> None:
    """Write `error-<rank>.json` and print the traceback into the log. Never raises: the error itself matters more."""
    happened = time.time()
    text = "".join(traceback.format_exception(error))
    content: dict[str, Any] = {
        "rank": rank,
        "time": happened,
        "type": type(error).__name__,
        "summary": _summary(error),
        "traceback": text,
        "problems": _problems(error),
        "where": _where(error),
        "out_of_memory": _out_of_memory(error),
    }
    # A disk that is full may keep us from either; each is tried whatever became of the other.
    with contextlib.suppress(OSError):
        atomic.write_json(phase.error(rank), content)
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - the log is where people look next


def _summary(error: BaseException) -> str:
    text = str(error).strip()
    if isinstance(error, PilotkitError):
        return text
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__


def _problems(error: BaseException) -> list[dict[str, Any]]:
    """A mistake in the user's configuration, in parts that the driver can tell together with others."""
    if not isinstance(error, ConfigError):
        return []
    return [{**dataclasses.asdict(problem), "value": str(problem.value)} for problem in error.problems]


def _out_of_memory(error: BaseException) -> dict[str, Any] | None:
    try:
        from pilotkit.meter.out_of_memory import is_out_of_memory
    except (ImportError, OSError):  # a torch whose libraries are missing raises the second
        return None
    found = is_out_of_memory(error)
    if found is None:
        return None
    return {"requested_bytes": found.requested_bytes, "text": found.text, "where": _where(error)}


def _where(error: BaseException) -> str:
    """Which part of the step was going on, by the names of our own functions on the stack."""
    frames = traceback.extract_tb(error.__traceback__)
    names = [frame.name for frame in frames if Path(frame.filename).parts[-3:-1] == TRAIN]
    steps = {"evaluate": "evaluation", "save": "checkpoint save", "load": "checkpoint load", "train_step": "a step"}
    known = [steps[name] for name in names if name in steps]
    return known[-1] if known else "building the model"
