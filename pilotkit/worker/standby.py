"""The other end of `pilotkit.launch.standby`: import what takes long, then wait to be told what to do."""

from __future__ import annotations

import json
import os
import sys


def wait() -> list[str]:
    """The arguments of a worker, with its variables and its log in place; ends the process when nobody asks for it."""
    import torch._dynamo  # noqa: F401 - torch itself imports it with the first fake tensor

    import pilotkit.worker.phases.estimate  # noqa: F401

    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        os._exit(0)
    told = json.loads(line)
    os.environ.clear()
    os.environ.update(told["variables"])
    for number, flags, path in ((0, os.O_RDONLY, os.devnull), (1, os.O_WRONLY | os.O_APPEND, told["log"])):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    os.dup2(1, 2)
    arguments: list[str] = told["arguments"]
    return arguments
