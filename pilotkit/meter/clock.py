"""Wall time of training steps and of named sections inside them. Called by the trainer and by StepMeter.

Accelerators run behind the program, so a step is timed from one synchronisation to the next. Never
synchronises inside a step unless told to: that would take away the overlap it is meant to measure.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager


class StepClock:
    """Times steps and their sections, seconds, oldest first.

    `synchronize` waits for the device (`Device.synchronize`); it is called at both edges of a step.
    A section is timed on the host. On an accelerator that is the time to launch its work, not to do it, except with
    `synchronize_sections=True`, which waits at the edges of each section too and makes the steps slower.

    `section_seconds[name]` has one entry for each entry of `step_seconds`: the section's sum within that step, 0 where
    it did not occur. A section inside another is part of both. `other_seconds` is what lay outside all sections, one
    entry a step. `between_seconds` is what passed from the end of the step before to the beginning of each: 0 for the
    first, and in no step. A step that raises is not recorded.
    """

    def __init__(self, synchronize: Callable[[], None], *, synchronize_sections: bool = False) -> None:
        self.step_seconds: list[float] = []
        self.section_seconds: dict[str, list[float]] = {}
        self.other_seconds: list[float] = []
        self.between_seconds: list[float] = []
        self._synchronize = synchronize
        self._synchronize_sections = synchronize_sections
        self._current: dict[str, float] | None = None
        self._open_sections: list[str] = []
        self._inside_seconds = 0.0
        self._start = 0.0
        self._end: float | None = None
        self._between = 0.0

    def step(self) -> AbstractContextManager[None]:
        """Time one step. Entering it raises RuntimeError inside another step."""
        return _Step(self)

    def section(self, name: str) -> AbstractContextManager[None]:
        """Time a part of the current step.

        Entering it raises RuntimeError outside a step, or inside a section of the same name.
        """
        return _Section(self, name)

    def end_again(self) -> None:
        """What passed since the last step was its end, too, and lies between no steps."""
        self._end = time.perf_counter()

    def _begin_step(self) -> None:
        if self._current is not None:
            raise RuntimeError("a step was started inside another step")
        self._between = 0.0 if self._end is None else time.perf_counter() - self._end
        self._synchronize()
        self._current, self._inside_seconds = {}, 0.0
        self._start = time.perf_counter()

    def _end_step(self) -> None:
        sections = self._current or {}
        self._synchronize()
        self._end = time.perf_counter()
        seconds = self._end - self._start
        self.between_seconds.append(self._between)
        for name in sections:
            # A section that is new now did not occur in the steps before.
            self.section_seconds.setdefault(name, [0.0] * len(self.step_seconds))
        for name, values in self.section_seconds.items():
            values.append(sections.get(name, 0.0))
        self.step_seconds.append(seconds)
        self.other_seconds.append(seconds - self._inside_seconds)

    def _begin_section(self, name: str) -> float:
        if self._current is None:
            raise RuntimeError(f"section {name!r} was started outside a step")
        if name in self._open_sections:
            raise RuntimeError(f"section {name!r} was started inside itself")
        if self._synchronize_sections:
            self._synchronize()
        self._open_sections.append(name)
        return time.perf_counter()

    def _end_section(self, name: str, start: float) -> None:
        if self._synchronize_sections:
            self._synchronize()
        seconds = time.perf_counter() - start
        if self._current is None:
            return  # it outlived its step, whose entry is written
        self._current[name] = self._current.get(name, 0.0) + seconds
        if len(self._open_sections) == 1:
            self._inside_seconds += seconds


# Classes and no generators: between two steps of a model the interpreter's own code is out of the caches, where each
# call costs ten times what it does in a tight loop (benchmarks/bench_meter.py).
class _Step:
    __slots__ = ("_clock",)

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    def __enter__(self) -> None:
        self._clock._begin_step()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._clock._end_step()
            else:
                self._clock.end_again()  # what it took lies between no two steps: an evaluation, for one
        finally:
            self._clock._current = None


class _Section:
    __slots__ = ("_clock", "_name", "_start")

    def __init__(self, clock: StepClock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._start = self._clock._begin_section(self._name)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._clock._end_section(self._name, self._start)
        finally:
            self._clock._open_sections.remove(self._name)
