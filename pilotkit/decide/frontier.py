"""The largest value that fits, by bisection: what is to be tried next, and what is known once nothing is left.

Called by `pilotkit.launch.frontier`, which runs the points. Rests on one assumption: what needs more memory fits less,
so that a value above one that did not fit would not fit either. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FITS, DOES_NOT_FIT = "ok", "does_not_fit"


@dataclass
class Bisection:
    """One search over `values`, which are in ascending order. `highest_fit` and `lowest_misfit` are places in them."""

    values: Sequence[int]
    highest_fit: int = -1
    lowest_misfit: int | None = None
    num_tried: int = 0
    problem: str = ""
    """Why it was given up: a point that has no answer leaves its neighbours without one."""

    def __post_init__(self) -> None:
        assert list(self.values) == sorted(set(self.values)), self.values

    @property
    def next_place(self) -> int | None:
        """The place to try next: the middle of what is open. None when nothing is, or when it was given up."""
        above = len(self.values) if self.lowest_misfit is None else self.lowest_misfit
        if self.problem or above - self.highest_fit <= 1:
            return None
        return (self.highest_fit + above) // 2

    @property
    def next_value(self) -> int | None:
        return None if (place := self.next_place) is None else self.values[place]

    def hear(self, status: str, cause: str = "") -> None:
        """What became of the value that was to be tried next, by the status of its record."""
        place = self.next_place
        assert place is not None, "nothing was open"
        self.num_tried += 1
        if status == FITS:
            self.highest_fit = place
        elif status == DOES_NOT_FIT:
            self.lowest_misfit = place
        else:
            self.problem = f"{self.values[place]} {status.replace('_', ' ')}" + (f": {cause}" if cause else "")

    @property
    def largest(self) -> int | None:
        """The largest value that was seen to fit; None when none was."""
        return None if self.highest_fit < 0 else self.values[self.highest_fit]

    @property
    def smallest_misfit(self) -> int | None:
        return None if self.lowest_misfit is None else self.values[self.lowest_misfit]

    def words(self) -> str:
        """`8 (16 does not fit)`, `32, the largest that was asked for`, `none: 1 does not fit`."""
        if self.problem:
            return f"{'not known' if self.largest is None else f'at least {self.largest}'}; {self.problem}"
        if self.largest is None:
            return f"none: {self.smallest_misfit} does not fit"
        if self.smallest_misfit is None:
            return f"{self.largest}, the largest that was asked for"
        return f"{self.largest} ({self.smallest_misfit} does not fit)"
