"""One line of a qualification: what was checked, on what, how it ended. Made by every file of this room."""

from __future__ import annotations

from dataclasses import dataclass

PASS, FAIL, NOT_RUN = "PASS", "FAIL", "NOT RUN"


@dataclass(frozen=True)
class Row:
    """`check` is the kind (operator, gradient, extension, ...), `subject` its name; `note` says what was found."""

    check: str
    subject: str
    verdict: str
    note: str = ""


def words_of(error: BaseException) -> str:
    """The first line of an error, for a note."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:160]}" if text else type(error).__name__
