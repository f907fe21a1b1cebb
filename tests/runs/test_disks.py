"""Folders and machines that refuse: a full disk, a read-only folder, too little shared memory, few cores."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def test_a_disk_that_the_run_fills_still_takes_the_record_that_says_so(
    pilotkit_cli: Any, small_disk: Path, mine: tuple[str, ...]
) -> None:
    kept = pilotkit_cli("stage=lock", *mine, f"output_dir={small_disk / 'out'}")
    # The checkpoint alone needs more than the disk has.
    result = pilotkit_cli("stage=prove", *mine, "+model.kwargs.width=512", f"output_dir={small_disk / 'out'}")
    (path,) = small_disk.glob("out/*/prove/*/record.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert (kept.returncode, result.returncode) == (0, 1)
    assert record["status"] == "failed"
    assert "No space left on device" in str(record["problem"]) or "disk of the output folder is full" in str(record)
    (earlier,) = small_disk.glob("out/*/lock/*/record.json")
    assert json.loads(earlier.read_text(encoding="utf-8"))["status"] == "ok"
    assert "Traceback" not in result.stderr


def test_a_folder_that_cannot_be_written_is_one_line(pilotkit_cli: Any, read_only_folder: Path) -> None:
    result = pilotkit_cli("stage=lock", f"output_dir={read_only_folder / 'out'}")
    assert result.returncode == 1
    assert result.stderr.startswith(f"output_dir={read_only_folder / 'out'} cannot be written: ")
    assert result.stderr.count("\n") == 1


def test_a_sweep_folder_that_cannot_be_written_is_one_line(
    pilotkit_cli: Any, read_only_folder: Path, tmp_path: Path
) -> None:
    """Hydra writes there before any of us does. A file in the place of the folder is the same for it."""
    (tmp_path / "file").touch()
    for output_dir in (read_only_folder / "out", tmp_path / "file"):
        result = pilotkit_cli("-m", "stage=lock", "train.seq_len=32,64", f"output_dir={output_dir}")
        assert result.returncode == 1
        assert result.stderr.startswith("A file of the sweep cannot be written or read: "), result.stderr
        assert str(output_dir) in result.stderr
        assert result.stderr.count("\n") == 1
        assert "points" not in result.stdout


def test_loaders_without_shared_memory_are_told_before_training(tmp_path: Path, mine: tuple[str, ...]) -> None:
    """A container's /dev/shm, made small in a name space of its own."""
    command = [
        *("unshare", "--user", "--map-root-user", "--mount", "sh", "-c"),
        'mount -t tmpfs -o size=48k tmpfs /dev/shm && exec "$@"',
        *("sh", sys.executable, "-m", "pilotkit", *mine, "data.num_workers=2", "train.seq_len=512"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    results = {
        stage: subprocess.run(
            [*command, f"stage={stage}"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        for stage in ("budget", "measure")
    }
    for stage, words in {
        "budget": "shared memory is too small for the loaders: 128.00 KiB needed, 48.00 KiB free",
        "measure": "the shared memory has 48.00 KiB free, and the loaders need 64.00 KiB",
    }.items():
        assert results[stage].returncode == 1, results[stage]
        assert words in results[stage].stderr
    (record,) = (json.loads(path.read_text()) for path in tmp_path.glob("outputs/*/measure/*/record.json"))
    assert not list(tmp_path.glob("outputs/*/measure/*/phases/measure/progress.jsonl")), "no step was taken"
    assert record["status"] == "failed"


def test_one_core_is_one_core(tmp_path: Path, mine: tuple[str, ...]) -> None:
    taskset = shutil.which("taskset")
    assert taskset, "util-linux is everywhere"
    core = str(min(os.sched_getaffinity(0)))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": ""}
    command = [taskset, "-c", core, sys.executable, "-m", "pilotkit", "stage=budget", *mine]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    (path,) = tmp_path.glob("outputs/*/budget/*/record.json")
    threads = json.loads(path.read_text(encoding="utf-8"))["details"]["threads"]
    assert (threads["usable_cpus"], threads["num_threads"], threads["suggested_num_workers"]) == (1, 1, 1)
