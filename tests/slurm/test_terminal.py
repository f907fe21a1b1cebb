"""Waiting in a terminal: the table that is drawn again and again, and the question that Ctrl-C asks."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from conftest import TINY

CTRL_C = b"\x03"


class Terminal:
    """A process that has a terminal for itself, as a person sees and types it."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.seen = ""
        self._master = master

    def until(self, pattern: str, *, seconds: float = 90) -> None:
        """Read until the pattern was shown since the last call."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < end, self.seen[-3000:]
            if select.select([self._master], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self._master, 65536).decode(errors="replace")
                except OSError:  # the other end is closed
                    assert re.search(pattern, self.seen), self.seen[-3000:]
        self.seen = self.seen[found.end() :]

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def exit_code(self) -> int:
        return self.process.wait(timeout=60)


@contextmanager
def terminal(lab, *arguments: str) -> Iterator[Terminal]:
    master, slave = os.openpty()
    # `setsid --ctty`: the terminal is the process's own, so that the key sends it SIGINT.
    process = subprocess.Popen(
        # A test run that was started in the background ignores SIGINT, and its children would inherit that.
        ["env", "--default-signal=INT", "setsid", "--ctty", "--wait", sys.executable, "-m", "pilotkit", *arguments],
        cwd=lab.folder,
        env=lab.environment({"TERM": "xterm"}),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(master)


@pytest.mark.parametrize(
    ("answer", "words", "status"),
    [(b"\n", "the jobs go on", "running"), (b"c\n", r"cancelled: \d+", "cancelled")],
    ids=["leave", "cancel"],
)
def test_ctrl_c_asks(lab, answer: bytes, words: str, status: str) -> None:
    arguments = ("-m", *TINY, "+model.kwargs.how=sleep", "cluster.wait=true")
    with terminal(lab, *arguments) as shown:
        shown.until("submitted 1 of 1 points")
        shown.until(r"status[\s\S]*running")
        shown.type(CTRL_C)
        shown.until(r"\[l\]eave the jobs running, or \[c\]ancel them\?")
        shown.type(answer)
        shown.until(words)
        assert shown.exit_code() == 130
    truths = lab.until(lab.newest(), lambda found: found == [status])
    assert truths[0] == (status, "cancelled in Slurm" if status == "cancelled" else "")
