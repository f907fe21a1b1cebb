"""Run the independent reader of an export: a script in a process of its own. Called by stage `restore`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

READER = Path(__file__).resolve().parents[1] / "worker" / "read_export.py"
TIMEOUT_SECONDS = 600.0


def read_export(export: Path, *, checkpoint: Path, rtol: float) -> list[dict[str, str]]:
    """The rows that the reader found; one that says what it died of where it found none."""
    # -I: neither the working directory nor PYTHONPATH is searched.
    command = [sys.executable, "-I", str(READER), str(export), "--checkpoint", str(checkpoint), "--rtol", str(rtol)]
    try:
        done = subprocess.run(  # noqa: S603 - our own script, on a folder of ours
            command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
        rows: list[dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return [_failed(f"it did not end within {TIMEOUT_SECONDS:.0f} s")]
    except (IndexError, ValueError):
        return [_failed((done.stderr.splitlines() or ["it printed nothing"])[-1])]
    return rows


def _failed(note: str) -> dict[str, str]:
    return {"component": "export: the independent reader", "verdict": "FAIL", "note": note}
