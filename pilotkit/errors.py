"""The errors a user can meet, each with the exit code that the front door returns for it.

Every room raises these; only `pilotkit.cli` turns them into text and an exit code.
A mistake of ours is an ordinary exception or an `assert`, and keeps its traceback.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Problem:
    """One thing wrong with the user's configuration.

    `key` is the dotted name, `value` what the user gave, `allowed` what would have been accepted,
    `fix` how to mend it. `factors` are the other dotted names that the finding rests on.
    """

    key: str
    value: object
    allowed: str
    fix: str
    factors: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.key}={self.value}\n    allowed: {self.allowed}\n    to mend: {self.fix}"


class PilotkitError(Exception):
    """Base of every error that is explained to the user without a traceback."""

    exit_code = EXIT_FAILED


class ConfigError(PilotkitError):
    """The configuration cannot be run; carries all the problems found, not only the first."""

    exit_code = EXIT_CONFIG

    def __init__(self, problems: Sequence[Problem], *, found_by: str | None = None) -> None:
        assert problems, "a ConfigError needs at least one problem"
        self.problems = tuple(problems)
        self.found_by = found_by  # the phase that met it; None when nothing was started
        super().__init__(str(self))

    def __str__(self) -> str:
        count = len(self.problems)
        head = "1 problem" if count == 1 else f"{count} problems"
        when = f"found by {self.found_by}" if self.found_by else "nothing was started"
        lines = [f"{head} in the configuration; {when}."]
        lines += [f"{number}. {problem}" for number, problem in enumerate(self.problems, 1)]
        return "\n".join(lines)


class StageFailed(PilotkitError):
    """A stage ended without doing what it was asked; the record says why."""


class StageRefused(PilotkitError):
    """A stage cannot be done here (for example no such accelerator); says what would work instead."""


class RecordError(PilotkitError):
    """A record on disk cannot be read: damaged, or written by a newer pilotkit."""


class CheckpointError(PilotkitError):
    """A checkpoint cannot be written, is damaged, or does not belong to this run."""


class OutputError(PilotkitError):
    """The output folder cannot take what a run has to write (read-only, full, not a folder)."""

    exit_code = EXIT_FAILED


_DISK = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
    errno.EIO,
)


def is_refusal_of_disk(error: OSError) -> bool:
    """Whether a file system would not take something: full, read-only, somebody else's, or no folder."""
    return error.errno in _DISK


class SubmissionRefused(PilotkitError):
    """The scheduler did not take a sweep; carries its own sentence."""


class Interrupted(KeyboardInterrupt):
    """Something outside ends the run: `status` is what its record will say. Handled wherever Ctrl-C is.

    `patience_seconds` is how long a worker that can save may take for it; 0 ends it at once. With `may_continue` a run
    that leaves something to go on from is `preempted`, whatever it was interrupted for: it goes on in another attempt.
    """

    def __init__(self, status: str, words: str, *, patience_seconds: float = 0.0, may_continue: bool = False) -> None:
        self.status = status
        self.words = words
        self.patience_seconds = patience_seconds
        self.may_continue = may_continue
        super().__init__(words)

    def __str__(self) -> str:
        return self.words

    def has_saved(self, step: int) -> None:
        """A worker has saved at this optimizer step and ended by itself."""
        self._has_left(f"saved after step {step}")

    def has_done(self, stages: int) -> None:
        """Stages of this attempt are done, and are not done again by the next."""
        self._has_left(
            f"{stages} stage{'s' if stages > 1 else ''} of this attempt {'are' if stages > 1 else 'is'} done"
        )

    def _has_left(self, words: str) -> None:
        self.words = f"{self.words}; {words}"
        if self.may_continue:
            self.status = "preempted"
