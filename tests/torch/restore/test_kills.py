"""Kill -9 at random moments: whatever had been saved is there, whole, and the next start goes on from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


# 100 in all; `benchmarks/restore_trials.py` runs as many again with other moments.
@pytest.mark.parametrize(
    ("kills", "world_size", "how"),
    [(60, 1, []), (20, 2, []), (15, 1, ["--async"]), (5, 2, ["--async"])],
    ids=["one process", "two ranks", "one process, asynchronous", "two ranks, asynchronous"],
)
def test_nothing_is_lost(kills, world_size, how, tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "restore_kills.py"), str(tmp_path)]
    done = subprocess.run(
        [*command, "--kills", str(kills), "--world-size", str(world_size), "--seed", "1", *how],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tally = json.loads(done.stdout.splitlines()[-1])
    assert tally["kills"] == kills
    assert tally["saves"] > 0
    assert tally["partials"] > 0, "no kill fell into a save, so nothing was tried"
    for name in ("lost_steps", "damaged", "latest_wrong", "not_cleaned", "not_resumed"):
        assert tally[name] == 0, tally
