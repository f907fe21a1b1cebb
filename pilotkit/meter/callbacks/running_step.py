"""A step that is always running: from one optimizer step to the next, so that the wait for data is part of it.

Trainers say when a step has ended and when something else (evaluation, a save) goes on, but not when they begin to
wait. Called by the callbacks of this folder.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from pilotkit.meter.step_meter import StepMeter


class _Abandoned(Exception):
    """Thrown into a step that must not be counted."""


class RunningStep:
    """Opens and closes the steps of a meter by calls in place of a `with`. Calls that do not fit are passed over."""

    def __init__(self, meter: StepMeter) -> None:
        self.meter = meter
        self._step: AbstractContextManager[None] | None = None
        self._wait: AbstractContextManager[None] | None = None

    def begin(self, *, tells_data: bool = True) -> None:
        """A step begins now; one that was open is abandoned. `tells_data`: `data_is_here` will end its wait."""
        self.abandon()
        self._step = self.meter.step()
        self._step.__enter__()
        if not tells_data:
            return
        self._wait = self.meter.section("data_wait")
        self._wait.__enter__()

    def data_is_here(self) -> None:
        """The first batch of the step has come."""
        if self._wait is not None:
            self._wait.__exit__(None, None, None)
            self._wait = None

    def end(self) -> None:
        """The optimizer step is done: count it."""
        self.data_is_here()
        if self._step is not None:
            step, self._step = self._step, None
            step.__exit__(None, None, None)

    def abandon(self) -> None:
        """Something else went on meanwhile: the step that is open is not counted."""
        self.data_is_here()
        if self._step is not None:
            step, self._step = self._step, None
            reason = _Abandoned()
            step.__exit__(_Abandoned, reason, None)
