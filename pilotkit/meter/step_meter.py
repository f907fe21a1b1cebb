"""Three lines that leave a measurement in anybody's training script; pilotkit's own driver reads the same file.

Called by users' scripts. Reads the environment that torchrun sets, writes one JSON file a rank, and never
starts, stops or slows the training beyond one synchronisation at each edge of a step.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from pilotkit.device import Device, current_device, synchronize_current
from pilotkit.doubts import MAX_SPREAD, step_doubts
from pilotkit.errors import ConfigError, OutputError, Problem
from pilotkit.meter.clock import StepClock
from pilotkit.meter.compilation import Compilation, CompileWatch, at_limit, compile_metrics
from pilotkit.meter.device_use import device_memory_metrics
from pilotkit.meter.rss import peak_rss_bytes
from pilotkit.meter.statistics import is_settled
from pilotkit.meter.step_times import TOLERANCE, find_warmup, step_metrics
from pilotkit.records.atomic import write_json
from pilotkit.units import format_seconds
from pilotkit.variables import METER_FILE_VARIABLE

SCHEMA_VERSION = 2
MAX_LATE = 0.01
"""Of a step: work that is still going on when it is over."""


class StepMeter:
    """Measures the steps of a training loop.

        meter = StepMeter(tokens_per_step=8192)
        for batch in loader:
            with meter.step():
                ...                                   # with meter.section("data_wait"): ... if you like
        meter.close()

    `path`: the file to write; None takes it from PILOTKIT_METER_FILE, and without that nothing is written, so that the
    lines may stay in a script that also runs alone. `tokens_per_step`: tokens of one step over all ranks.
    `num_warmup_steps`: first steps that are run and not counted; None finds out afterwards where they had settled
    (`step_times.find_warmup`). `synchronize`: waits for the device; None waits for the accelerator that the process
    uses when the step begins. One of yours that does not wait for it is told. Raises ConfigError for a number out of
    range.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        tokens_per_step: int,
        num_warmup_steps: int | None = None,
        synchronize: Callable[[], None] | None = None,
    ) -> None:
        _check(tokens_per_step=tokens_per_step, num_warmup_steps=num_warmup_steps)
        chosen = path if path is not None else os.environ.get(METER_FILE_VARIABLE)
        self.path = Path(chosen) if chosen else None
        self._tokens_per_step = tokens_per_step
        self._num_warmup_steps = num_warmup_steps
        self._clock = StepClock(synchronize or synchronize_current)
        self._is_waited_for = synchronize is None
        self._late_seconds: list[float] = []
        # Of every step of the clock, and of the one that is going on.
        self._compilations: list[list[Compilation]] = []
        self._result: dict[str, Any] | None = None

    def step(self) -> AbstractContextManager[None]:
        """Time one optimizer step, data wait included. Raises RuntimeError inside another step or after `close`."""
        if self._result is not None:
            raise RuntimeError("the meter is closed: no further step can be measured")
        return _MeteredStep(self._clock.step(), self._compilations, None if self._is_waited_for else self._see_late)

    def section(self, name: str) -> AbstractContextManager[None]:
        """Time a part of the current step; the metric is called `<name>_seconds`. See StepClock.section."""
        return self._clock.section(name)

    def _see_late(self) -> None:
        """After a step that the user's own `synchronize` ended: how long the device goes on working."""
        started = time.perf_counter()
        synchronize_current()
        self._late_seconds.append(time.perf_counter() - started)
        self._clock.end_again()

    def close(self) -> dict[str, Any]:
        """Write the file and return its content; a second call returns the same.

        Rank 0 writes `path`, rank r `<name>-<r>.json` beside it.

        Keys: `schema_version`; `device`, its name; `metrics`, flat, unit in the suffix, named and reckoned as those of
        stage `measure`; `step_seconds`, every step, warm-up included; `notes`, what limits the figures, in the words of
        a stage's warnings; `time`: `settled`, whether the counted steps had stopped becoming faster, and what was
        compiled in warm-up and again in counted steps. Memory is this rank's, over the whole life of the process; on
        the CPU only the resident set, as counting live tensors would slow the steps down (`LiveTensorTracker` does).
        Raises OutputError when the file cannot be written.
        """
        if self._result is None:
            self._result = self._measured(current_device())
            if self.path is not None:
                _write(_path_of_rank(self.path, os.environ.get("RANK", "0")), self._result)
        return self._result

    def _measured(self, device: Device) -> dict[str, Any]:
        seconds = self._clock.step_seconds
        num_warmup_steps = find_warmup(seconds) if self._num_warmup_steps is None else self._num_warmup_steps
        warmup, counted = seconds[:num_warmup_steps], seconds[num_warmup_steps:]
        compiled = [found for step in self._compilations[: len(warmup)] for found in step]
        compiled_again = [found for step in self._compilations[len(warmup) :] for found in step]
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        metrics: dict[str, float] = {"world_size": world_size, **device_memory_metrics(device)}
        resident = peak_rss_bytes()
        if resident is not None:
            metrics["peak_rss_bytes"] = resident
        notes: list[str] = []
        timing = {
            "settled": len(counted) < 2 or is_settled(counted, window=len(counted) // 2, tolerance=TOLERANCE),
            "compilations": [asdict(found) for found in compiled],
            "recompilations": [asdict(found) for found in compiled_again],
            "compile_limits": at_limit([*compiled, *compiled_again]),
        }
        if counted:
            sections = {name: values[len(warmup) :] for name, values in self._clock.section_seconds.items()}
            metrics |= step_metrics(
                warmup_seconds=warmup,
                step_seconds=counted,
                section_seconds=sections,
                tokens_per_step=self._tokens_per_step,
                world_size=world_size,
                other_seconds=statistics.fmean(self._clock.other_seconds[len(warmup) :]),
            )
            metrics["between_steps_seconds"] = statistics.fmean(self._clock.between_seconds[len(warmup) :])
            metrics |= compile_metrics(compiled, compiled_again)
            notes += _late_notes(self._late_seconds[len(warmup) :], counted)
            notes += step_doubts(metrics, max_spread=MAX_SPREAD, time=timing)
        else:
            metrics |= {"num_warmup_steps": len(warmup), "num_measured_steps": 0, "warmup_seconds": sum(warmup)}
            notes.append(f"no step was counted: {len(seconds)} were run and num_warmup_steps is {num_warmup_steps}")
        return {
            "schema_version": SCHEMA_VERSION,
            "device": device.name,
            "metrics": metrics,
            "step_seconds": list(seconds),
            "time": timing,
            "notes": notes,
        }


class _MeteredStep:
    """A step of the clock, with what was compiled inside; appended to `compilations` unless the step raised. `after` is
    called then, outside of what is timed."""

    __slots__ = ("_after", "_compilations", "_step", "_watch")

    def __init__(
        self,
        step: AbstractContextManager[None],
        compilations: list[list[Compilation]],
        after: Callable[[], None] | None,
    ) -> None:
        self._step, self._compilations, self._after, self._watch = step, compilations, after, CompileWatch()

    def __enter__(self) -> None:
        self._watch.__enter__()
        self._step.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._step.__exit__(kind, error, trace)
        self._watch.__exit__(kind, error, trace)
        if kind is None:
            self._compilations.append(self._watch.compilations)
            if self._after is not None:
                self._after()


def _late_notes(late: list[float], counted: list[float]) -> list[str]:
    """A `synchronize` that does not wait leaves the work of a step to the next one, or to nobody."""
    if statistics.median(late or [0.0]) <= MAX_LATE * statistics.median(counted):
        return []
    return [
        f"the device worked on for {format_seconds(statistics.median(late))} (median) after `synchronize` had ended a "
        "step: the step times are too short by that; leave synchronize= away, or give it a function that waits"
    ]


def _path_of_rank(path: Path, rank: str) -> Path:
    return path if rank == "0" else path.with_name(f"{path.stem}-{rank}{path.suffix}")


def _write(path: Path, result: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, result)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error


def _check(*, tokens_per_step: int, num_warmup_steps: int | None) -> None:
    problems = []
    if tokens_per_step < 1:
        problems.append(Problem("tokens_per_step", tokens_per_step, "1 or more", "give the tokens of one step"))
    if num_warmup_steps is not None and num_warmup_steps < 0:
        problems.append(Problem("num_warmup_steps", num_warmup_steps, "0 or more", "give 0 to count every step"))
    if problems:
        raise ConfigError(problems)
