"""Why a worker ended as it did: which rank failed first, with what traceback, and whether it was for want of memory.

Three witnesses are heard: the error files that ranks write, the summary that torchrun prints, and the kernel.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilotkit.errors import Interrupted
from pilotkit.launch.last_words import find_last_words
from pilotkit.records.record import Failure
from pilotkit.records.run_dir import PhaseDir
from pilotkit.units import format_bytes

LOG_TAIL_BYTES = 256 * 1024
LITTLE_SPACE_BYTES = 1024 * 1024
ROOT_CAUSE = "Root Cause (first observed failure):"
TORCHRUN_FAILURE = re.compile(r"rank\s+: (?P<rank>\d+) \(local_rank: \d+\)\s*\n\s*exitcode\s+: (?P<code>-?\d+)")
# What a process says last when the allocator's refusal could not become a Python exception.
MEMORY_WORDS = ("std::bad_alloc", "can't allocate memory", "Cannot allocate memory", "MemoryError")


@dataclass(frozen=True)
class Outcome:
    """How one worker start ended: `status` as in a record, what rank 0 found, and what went wrong."""

    status: str
    wall_seconds: float
    result: dict[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    out_of_memory: dict[str, Any] | None = None
    """`requested_bytes`, `peak_allocated_bytes`, `where`; only with status does_not_fit."""
    interruption: Interrupted | None = None
    """What ended the run while this was going on; it is raised once the outcome is noted."""


def judge(phase: PhaseDir, *, returncode: int | None, wall_seconds: float, oom_kills: int, torchrun: bool) -> Outcome:
    """Read what the processes left. `oom_kills`: how many the kernel counted in our control group meanwhile.

    `returncode` is torchrun's where `torchrun` started the ranks, else the one worker's; None when the time was up.
    """
    result = phase.read_result()
    if returncode == 0 and result is not None:
        return Outcome("ok", wall_seconds, result=result)
    log = read_tail(phase.log)
    if returncode is None:
        return Outcome("timed_out", wall_seconds, failure=Failure("the time limit was reached", log=last_lines(log)))
    errors = sorted(phase.errors(), key=lambda error: float(error.get("time", 0.0)))
    refused = [error for error in errors if error.get("out_of_memory")]
    if refused:
        return _does_not_fit(refused[0], wall_seconds)
    killed = killed_rank(log, returncode, torchrun=torchrun)
    if killed is not None:
        evidence = _memory_evidence(log, number=killed[1], oom_kills=oom_kills)
        if evidence:
            failure = Failure(f"{_who(killed[0])} was killed for want of memory", cause=evidence, rank=killed[0])
            return Outcome("does_not_fit", wall_seconds, failure=failure, out_of_memory={"where": evidence})
    failure = _failure(killed, errors, log, returncode)
    free = shutil.disk_usage(phase.path).free
    if free < LITTLE_SPACE_BYTES:
        # On a full disk the worker's own words are lost, the traceback and the log among them.
        words = f"the disk of the output folder is full ({format_bytes(free)} free); give another output_dir"
        failure = dataclasses.replace(failure, summary=f"{failure.summary}: {words}")
    return Outcome("failed", wall_seconds, failure=failure)


def _does_not_fit(error: dict[str, Any], wall_seconds: float) -> Outcome:
    failure = Failure(
        f"out of memory in {error['out_of_memory'].get('where', 'an unknown place')}",
        cause=str(error.get("summary", "")),
        rank=error.get("rank"),
        traceback=str(error.get("traceback", "")),
    )
    return Outcome("does_not_fit", wall_seconds, failure=failure, out_of_memory=error["out_of_memory"])


def _memory_evidence(log: str, *, number: int, oom_kills: int) -> str:
    """What says that signal `number` was for want of memory; empty when nothing does. The kernel sends SIGKILL only."""
    if oom_kills > 0 and number == signal.SIGKILL:
        return "says the kernel's out-of-memory killer"
    return "say the allocator's last words in the log" if any(word in log for word in MEMORY_WORDS) else ""


def _in_our_words(summary: str) -> str:
    """torch's advice about a kernel without a fixed order speaks of calls that nobody here makes; and where a NaN came
    from is known to another stage."""
    if re.match(r"step \d+: the (loss|gradient norm) is ", summary):
        return f"{summary}; stage=numerics with the same options names the module in which it began"
    found = re.search(r"(\S+) does not have a deterministic implementation", summary)
    if found is None:
        return summary
    return (
        f"{found[1]} has no deterministic kernel here; do without it, or set train.deterministic=false, and two runs "
        "of one lock need not be equal"
    )


def _failure(
    killed: tuple[int | None, int] | None, errors: Sequence[dict[str, Any]], log: str, returncode: int
) -> Failure:
    """A rank that was killed is the cause; its neighbours only report that it went away."""
    if killed is not None:
        rank, number = killed
        return Failure(
            f"{_who(rank)} was killed by {signal_name(number)}",
            cause=_meaning(number),
            rank=rank,
            traceback=_fatal_error(log),
            log=last_lines(log),
        )
    if errors:
        first = errors[0]  # the earliest
        said = f"rank {first['rank']}: {_in_our_words(str(first['summary']))}"
        silent = _silent_rank(log, speakers={int(error["rank"]) for error in errors})
        if silent is not None:
            rank, code = silent
            cause = f"by os._exit, or by native code; what another rank then met: {said}"
            return Failure(f"rank {rank} ended with exit code {code} and no error", cause, rank, log=last_lines(log))
        return Failure(
            said,
            cause=str(first.get("cause", "")),
            rank=int(first["rank"]),
            traceback=str(first.get("traceback", "")),
            log=last_lines(log),
        )
    ended = f"the worker ended with exit code {returncode} and left no result"
    words = find_last_words(log)
    if words is None:
        return Failure(ended, log=last_lines(log))
    who = "" if words.rank is None else f"rank {words.rank}: "
    return Failure(
        f"{who}{words.exception}", cause=ended, rank=words.rank, traceback=words.traceback, log=last_lines(log)
    )


def killed_rank(log: str, returncode: int, *, torchrun: bool) -> tuple[int | None, int] | None:
    """(rank, signal number) of the rank that a signal ended; rank None is torchrun itself.

    torchrun's root cause comes first although it prints it last. Of the others its own SIGTERM does not count, and
    theirs may: a rank whose neighbour was killed can fail a moment before torchrun looks.
    """
    if returncode < 0:
        return (None if torchrun else 0), -returncode
    for rank, code, is_root in _torchrun_failures(log):
        if code < 0 and (is_root or -code != signal.SIGTERM):
            return rank, -code
    return None


def _silent_rank(log: str, *, speakers: set[int]) -> tuple[int, int] | None:
    """(rank, exit code) of the first that ended by itself and wrote no error: the others only lost its connection."""
    return next(((rank, code) for rank, code, _ in _torchrun_failures(log) if code > 0 and rank not in speakers), None)


def _torchrun_failures(log: str) -> list[tuple[int, int, bool]]:
    """Rank, exit code, and whether it is the root cause, which comes first here."""
    before, _, root = log.partition(ROOT_CAUSE)
    return [
        (int(match["rank"]), int(match["code"]), is_root)
        for part, is_root in ((root, True), (before, False))
        for match in TORCHRUN_FAILURE.finditer(part)
    ]


def _who(rank: int | None) -> str:
    return "torchrun" if rank is None else f"rank {rank}"


def signal_name(number: int) -> str:
    """`9` -> `signal 9 (SIGKILL)`."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _meaning(number: int) -> str:
    return {
        int(signal.SIGKILL): "often the machine's out-of-memory killer, or somebody's kill -9",
        int(signal.SIGSEGV): "a fault in native code: an extension, a driver, or memory refused where nobody checks",
        int(signal.SIGBUS): "often shared memory (/dev/shm) that is full: fewer loader processes need less",
        int(signal.SIGABRT): "native code gave up; its last words are in the log",
    }.get(number, "")


def _fatal_error(log: str) -> str:
    """What faulthandler printed, when the process got that far."""
    start = log.find("Fatal Python error:")
    return "" if start < 0 else "\n".join(log[start:].splitlines()[:40])


def read_tail(path: Path) -> str:
    """The end of a log as text; empty when there is none."""
    try:
        with open(path, "rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(stream.tell() - LOG_TAIL_BYTES, 0))
            return stream.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def last_lines(text: str, count: int = 30) -> str:
    """The last lines, for a record."""
    return "\n".join(text.splitlines()[-count:])


def count_oom_kills() -> int:
    """How many processes of our control group the kernel has killed for memory so far; 0 where it does not say."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            lines = Path(path).read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        counts = [int(line.split()[1]) for line in lines if line.startswith("oom_kill ")]
        if counts:
            return counts[0]
    return 0
