"""Timed steps: the loop that `measure` and `pilot` share, so that their numbers may be compared."""

from __future__ import annotations

from dataclasses import dataclass

from pilotkit.meter.clock import StepClock
from pilotkit.train.trainer import StepResult
from pilotkit.worker.build import Built
from pilotkit.worker.session import Session


@dataclass(frozen=True)
class TimedSteps:
    """Seconds of every step, warm-up apart, and of each section of the counted ones."""

    warmup_seconds: list[float]
    step_seconds: list[float]
    section_seconds: dict[str, list[float]]
    results: list[StepResult]
    """Of every step, warm-up included."""

    @property
    def first(self) -> StepResult:
        return self.results[0]

    @property
    def last(self) -> StepResult:
        return self.results[-1]


def run_timed_steps(
    session: Session, built: Built, *, num_warmup_steps: int, num_measured_steps: int, label: str
) -> TimedSteps:
    """Run whole optimizer steps; the device is waited for at the edges of a step only."""
    warmup = StepClock(session.device.synchronize)
    counted = StepClock(session.device.synchronize)
    results = []
    total = num_warmup_steps + num_measured_steps
    for index in range(total):
        clock = warmup if index < num_warmup_steps else counted
        with clock.step():
            results.append(built.trainer.train_step(clock))
        session.progress(index + 1, total, label=label)
    return TimedSteps(warmup.step_seconds, counted.step_seconds, counted.section_seconds, results)
