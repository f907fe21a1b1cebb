"""A rank ends when its driver does, also when the driver had no chance to say goodbye (kill -9)."""

from __future__ import annotations

import os
import threading
import time

from pilotkit.variables import DRIVER_PID_VARIABLE

POLL_SECONDS = 0.5
EXIT_CODE = 143


def die_with_the_driver() -> None:
    """Start a thread that ends this process, at once and without clean-up, when the driver or the parent is gone."""
    driver = int(os.environ.get(DRIVER_PID_VARIABLE, "0"))
    parent = os.getppid()
    if driver:
        threading.Thread(target=_watch, args=(driver, parent), name="watch-driver", daemon=True).start()


def _watch(driver: int, parent: int) -> None:
    while os.getppid() == parent and _alive(driver):
        time.sleep(POLL_SECONDS)
    os._exit(EXIT_CODE)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
