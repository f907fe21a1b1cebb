"""Wall time of training steps and of named sections inside them. Called by the trainer and by StepMeter.

Accelerators run behind the program, so a step is timed from one synchronisation to the next. Never
synchronises inside a step unless told to: that would take away the overlap it is meant to measure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StepClock:
    """Times steps and their sections, seconds, oldest first.

    `synchronize` waits for the device (`Device.synchronize`); it is called at both edges of a step.
    A section is timed on the host. On an accelerator that is the time to launch its work, not to do it, except with
    `synchronize_sections=True`, which waits at the edges of each section too and makes the steps slower.

    `section_seconds[name]` has one entry for each entry of `step_seconds`: the section's sum within that step, 0 where
    it did not occur. A section inside another is part of both. `other_seconds` is what lay outside all sections, one
    entry a step. A step that raises is not recorded.
    """

    def __init__(self, synchronize: Callable[[], None], *, synchronize_sections: bool = False) -> None:
        self.step_seconds: list[float] = []
        self.section_seconds: dict[str, list[float]] = {}
        self.other_seconds: list[float] = []
        self._synchronize = synchronize
        self._synchronize_sections = synchronize_sections
        self._current: dict[str, float] | None = None
        self._open_sections: list[str] = []
        self._inside_seconds = 0.0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one step. Raises RuntimeError inside another step."""
        if self._current is not None:
            raise RuntimeError("a step was started inside another step")
        self._current, self._inside_seconds = {}, 0.0
        try:
            self._synchronize()
            start = time.perf_counter()
            yield
            self._synchronize()
            self._record(time.perf_counter() - start, self._current)
        finally:
            self._current = None

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Time a part of the current step. Raises RuntimeError outside a step, or inside a section of the same name."""
        sections = self._current
        if sections is None:
            raise RuntimeError(f"section {name!r} was started outside a step")
        if name in self._open_sections:
            raise RuntimeError(f"section {name!r} was started inside itself")
        self._open_sections.append(name)
        try:
            self._synchronize_section()
            start = time.perf_counter()
            yield
            self._synchronize_section()
            seconds = time.perf_counter() - start
            sections[name] = sections.get(name, 0.0) + seconds
            if len(self._open_sections) == 1:
                self._inside_seconds += seconds
        finally:
            self._open_sections.remove(name)

    def _synchronize_section(self) -> None:
        if self._synchronize_sections:
            self._synchronize()

    def _record(self, seconds: float, sections: dict[str, float]) -> None:
        for name in sections:
            # A section that is new now did not occur in the steps before.
            self.section_seconds.setdefault(name, [0.0] * len(self.step_seconds))
        for name, values in self.section_seconds.items():
            values.append(sections.get(name, 0.0))
        self.step_seconds.append(seconds)
        self.other_seconds.append(seconds - self._inside_seconds)
