"""Timed steps: the loop that `measure` and `pilot` share, so that their numbers may be compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

from pilotkit.meter.clock import StepClock
from pilotkit.meter.compilation import Compilation, CompileWatch
from pilotkit.meter.statistics import is_settled
from pilotkit.train.trainer import StepResult
from pilotkit.worker.build import Built
from pilotkit.worker.session import Session


@dataclass(frozen=True)
class TimedSteps:
    """Seconds of every step, warm-up apart, and of each section of the counted ones."""

    warmup_seconds: list[float]
    step_seconds: list[float]
    section_seconds: dict[str, list[float]]
    settled: bool
    """Whether warm-up ended because steps no longer became faster, and not because its limit was reached."""
    epoch_starts: list[bool]
    """For each counted step, whether this rank's rows passed into another epoch in it."""
    results: list[StepResult]
    """Of every step, warm-up included."""
    warmup_compilations: list[Compilation] = field(default_factory=list)
    counted_compilations: list[Compilation] = field(default_factory=list)
    compile_limits: list[str] = field(default_factory=list)
    num_skipped_steps: int | None = None
    """Counted steps of this attempt that the loss scaler skipped; None without one."""
    is_cut_short: bool = False
    """Whether `is_over` ended them before all were counted."""

    @property
    def first(self) -> StepResult:
        return self.results[0]

    @property
    def last(self) -> StepResult:
        return self.results[-1]


def run_timed_steps(
    session: Session,
    built: Built,
    *,
    num_warmup_steps: int,
    max_warmup_steps: int,
    num_measured_steps: int,
    label: str,
    is_over: Callable[[TimedSteps], bool] = lambda _so_far: False,
) -> TimedSteps:
    """Run whole optimizer steps; the device is waited for at the edges of a step only.

    Warm-up goes on until it has settled on every rank (`meter.statistics.is_settled`, windows of `num_warmup_steps`); a
    run that is run again takes as many steps for it as the first time.
    `is_over` is asked between any two steps, on every rank, and given the steps so far.
    """
    warmup = StepClock(session.device.synchronize)
    counted = StepClock(session.device.synchronize)
    trainer, results, epoch_starts = built.trainer, list[StepResult](), list[bool]()
    # Its lists are those that grow from here on.
    steps = TimedSteps(warmup.step_seconds, counted.step_seconds, counted.section_seconds, False, epoch_starts, results)
    settled = is_cut_short = False
    as_before = session.config.replay.warmup_steps.get(session.phase_dir.path.name)
    most = max_warmup_steps if as_before is None else as_before
    with CompileWatch() as compiled_before:
        # Where the number is given, the clock has no say.
        while not (is_cut_short or (settled and as_before is None)) and len(warmup.step_seconds) < most:
            with warmup.step():
                results.append(trainer.train_step(warmup))
            settled = _settled_everywhere(session, warmup.step_seconds, window=num_warmup_steps)
            session.progress(len(results), len(results) + num_measured_steps, label=label, step=trainer.step)
            is_cut_short = is_over(steps)
    with CompileWatch() as compiled_later:
        while not is_cut_short and len(counted.step_seconds) < num_measured_steps:
            epoch = trainer.train_rows.epoch
            with counted.step():
                results.append(trainer.train_step(counted))
            epoch_starts.append(trainer.train_rows.epoch != epoch)
            total = len(warmup.step_seconds) + num_measured_steps
            session.progress(len(results), total, label=label, step=trainer.step)
            # After the last one there is nothing left that could be cut short.
            is_cut_short = len(counted.step_seconds) < num_measured_steps and is_over(steps)
    return dataclasses.replace(
        steps,
        settled=settled,
        warmup_compilations=compiled_before.compilations,
        counted_compilations=compiled_later.compilations,
        compile_limits=sorted({*compiled_before.at_limit(), *compiled_later.at_limit()}),
        num_skipped_steps=None if trainer.scaler is None else _num_skipped(results[len(warmup.step_seconds) :]),
        is_cut_short=is_cut_short,
    )


def compilations_as_rows_come(built: Built, *, num_steps: int) -> list[Compilation]:
    """What is compiled in so many steps on rows as they come, where those that were timed are the longest alone: the
    long run meets every length. Called once steps are timed and an accelerator's memory is read: it changes both."""
    if built.all_rows is None:
        return []
    trainer, longest = built.trainer, built.trainer.train_rows
    trainer.train_rows = built.all_rows
    try:
        with CompileWatch() as watch:
            for _ in range(num_steps):
                trainer.train_step()
    finally:
        trainer.train_rows = longest
    return watch.compilations


def _num_skipped(results: list[StepResult]) -> int:
    return sum(result.skipped for result in results)


def _settled_everywhere(session: Session, seconds: list[float], *, window: int) -> bool:
    """A rank that goes on alone would wait for ever in its first collective: all decide together."""
    tolerance = session.config.measure.settled_tolerance
    here = is_settled(seconds, window=window, tolerance=tolerance)
    return session.highest(0.0 if here else 1.0) == 0.0
