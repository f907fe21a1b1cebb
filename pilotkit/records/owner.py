"""Whose process it was that left something unfinished, and whether that process is still there.

An id alone says nothing: ids come again, other machines have their own, and so has a container.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil


@dataclass(frozen=True)
class Owner:
    """One process of one machine, for certain: its start is in seconds since the epoch."""

    host: str
    pid: int
    started: float
    pid_namespace: str = ""
    """The kernel's name for the space in which the id counts, a container's own one perhaps; empty when not known."""

    @classmethod
    def of_this_process(cls) -> Owner:
        """Who asks."""
        return cls(socket.gethostname(), os.getpid(), psutil.Process().create_time(), _pid_namespace())

    @classmethod
    def from_plain(cls, plain: Any) -> Owner | None:
        """What `dataclasses.asdict` made, read back; None for anything else."""
        if not isinstance(plain, Mapping):
            return None
        try:
            namespace = str(plain.get("pid_namespace", ""))
            return cls(str(plain["host"]), int(plain["pid"]), float(plain["started"]), namespace)
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def is_of_this_machine(self) -> bool:
        """Whether looking its id up here means anything."""
        same_space = not self.pid_namespace or self.pid_namespace == _pid_namespace()
        return self.host == socket.gethostname() and same_space

    @property
    def is_alive_here(self) -> bool:
        """On this machine, and the process of that id is still the same one."""
        try:
            return self.is_of_this_machine and abs(psutil.Process(self.pid).create_time() - self.started) < 1
        except psutil.Error:
            return False

    @property
    def is_gone(self) -> bool:
        """It was on this machine and is no more. False where nobody here can tell."""
        return self.is_of_this_machine and not self.is_alive_here


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
