"""What a user's own program said before it ended: the exception in its log, and the rank it was on.

A worker of ours leaves an error file; anybody else's script leaves its log, with torchrun's report at the end, which
names no cause. Called for an outcome that nothing else explains. Reads text; opens nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

BEGIN = "Traceback (most recent call last):"
# torchrun's own words begin here: its traceback is of no use to anybody.
REPORT = re.compile(r"^[EW]\d{4} .*torch/distributed/elastic/", re.MULTILINE)
ROOT_RANK = re.compile(r"Root Cause \(first observed failure\):.*?rank\s*:\s*(\d+)", re.DOTALL)
PREFIX = re.compile(r"^\[rank(\d+)\]: ?")
EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?::\s.*)?$")


@dataclass(frozen=True)
class LastWords:
    """`exception` is one line, `RuntimeError: bad row 17`. `rank` is None where the log does not tell it."""

    exception: str
    traceback: str
    rank: int | None


def find_last_words(log: str) -> LastWords | None:
    """The exception that ended the program; of several ranks that of torchrun's root cause. None without one."""
    report = REPORT.search(log)
    said = log[: report.start()] if report else log
    by_rank: dict[int | None, list[str]] = {}
    for line in said.splitlines():
        prefix = PREFIX.match(line)
        rank = int(prefix[1]) if prefix else None
        by_rank.setdefault(rank, []).append(line[prefix.end() :] if prefix else line)
    root = ROOT_RANK.search(log)
    found = {rank: words for rank, lines in by_rank.items() if (words := _words(lines, rank)) is not None}
    # Ranks in the order in which they spoke; what has no rank is often a warning, so it comes last.
    order = [int(root[1]) if root else None, *(rank for rank in found if rank is not None), None]
    return next((found[rank] for rank in order if rank in found), None)


def _words(lines: list[str], rank: int | None) -> LastWords | None:
    if BEGIN not in lines:
        return None
    lines = lines[lines.index(BEGIN) :]
    # Of a chain (`During handling of ...`) the last one ended the program. It follows the indented lines of its stack.
    ends = [n for n in range(1, len(lines)) if lines[n - 1].startswith(" ") and EXCEPTION.match(lines[n])]
    if not ends:
        return None
    return LastWords(lines[ends[-1]], "\n".join(lines[: ends[-1] + 1]), rank)
