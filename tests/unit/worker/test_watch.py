"""A rank ends when its driver or its parent does: real processes, by the hundredth of a second."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WORKER = """
import sys, time
from pilotkit.worker import watch
watch.POLL_SECONDS = 0.02
watch.die_with_the_driver()
print("up", flush=True)
time.sleep(float(sys.argv[1]))
"""


def start(driver: int | None, *, sleep: float = 60) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PILOTKIT_DRIVER_PID"}
    if driver is not None:
        environment["PILOTKIT_DRIVER_PID"] = str(driver)
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", WORKER, str(sleep)],
        env={**environment, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.stdout.close()
    return process


def test_the_driver_ends() -> None:
    driver = subprocess.Popen(["sleep", "60"])
    worker = start(driver.pid)
    time.sleep(0.1)
    assert worker.poll() is None, "it lives as long as its driver"
    driver.kill()
    driver.wait()
    assert worker.wait(timeout=60) == 143


def test_the_parent_ends(tmp_path: Path) -> None:
    """torchrun between driver and rank is killed: the rank is nobody's child, and goes."""
    code = f"{WORKER}open('over', 'w').close()"
    (tmp_path / "worker.py").write_text(code, encoding="utf-8")
    script = f"'{sys.executable}' -S worker.py 60 & echo $! > pid; sleep 60"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PILOTKIT_DRIVER_PID": str(os.getpid())}
    parent = subprocess.Popen(
        ["sh", "-c", script], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "up\n"
    worker = int((tmp_path / "pid").read_text(encoding="utf-8"))
    os.killpg(parent.pid, 0)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 60
    while _runs(worker):
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.02)
    parent.stdout.close()
    assert not (tmp_path / "over").exists()
    # The shell's own `sleep` is left: end it, it is in the group that we made.
    os.killpg(parent.pid, 9)


@pytest.mark.parametrize("driver", [None, 0, 1], ids=["no driver", "zero", "somebody else's process"])
def test_nothing_to_watch_or_a_driver_that_stays(driver: int | None) -> None:
    worker = start(driver, sleep=0.1)
    assert worker.wait(timeout=60) == 0


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
