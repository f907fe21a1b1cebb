"""A step that is always running: from one optimizer step to the next, so that the wait for data is part of it.

Trainers say when a step has ended and when something else (evaluation, a save) goes on, but not when they begin to
wait. Called by the callbacks of this folder. Trainers also tell of evaluations and saves before and after training:
what comes outside `start` and `finish` is passed over, and never stops a script.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from pilotkit.meter.step_meter import StepMeter


class _Abandoned(Exception):
    """Thrown into a step that must not be counted."""


class RunningStep:
    """Opens and closes the steps of a meter by calls in place of a `with`. Calls that do not fit are passed over.

    `make_meter` is called once at once, so that what is wrong with its arguments is told before training, and for each
    training: a meter is closed after one. `tells_data`: `data_is_here` will end the wait of every step.
    """

    def __init__(self, make_meter: Callable[[], StepMeter], *, tells_data: bool = True) -> None:
        make_meter()
        self._make_meter = make_meter
        self._tells_data = tells_data
        self._meter: StepMeter | None = None
        self._step: AbstractContextManager[None] | None = None
        self._wait: AbstractContextManager[None] | None = None

    def start(self) -> None:
        """Training begins, and its first step. What an earlier training left open (it raised) is not counted."""
        self.abandon()
        self._meter = self._make_meter()
        self.begin()

    def finish(self) -> dict[str, Any] | None:
        """Training is over: the meter's content, its file written. None without a `start`."""
        self.abandon()
        meter, self._meter = self._meter, None
        return None if meter is None else meter.close()

    def begin(self) -> None:
        """A step begins now; one that was open is abandoned."""
        self.abandon()
        if self._meter is None:
            return
        self._step = self._meter.step()
        self._step.__enter__()
        if self._tells_data:
            self._wait = self._meter.section("data_wait")
            self._wait.__enter__()

    def data_is_here(self) -> None:
        """The first batch of the step has come."""
        if self._wait is not None:
            self._wait.__exit__(None, None, None)
            self._wait = None

    def end(self) -> None:
        """The optimizer step is done: count it, and begin the next."""
        self.data_is_here()
        if self._step is not None:
            step, self._step = self._step, None
            step.__exit__(None, None, None)
        self.begin()

    def abandon(self) -> None:
        """Something else went on meanwhile: the step that is open is not counted."""
        self.data_is_here()
        if self._step is not None:
            step, self._step = self._step, None
            reason = _Abandoned()
            step.__exit__(_Abandoned, reason, None)
