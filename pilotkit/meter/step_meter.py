"""Three lines that leave a measurement in anybody's training script; pilotkit's own driver reads the same file.

Called by users' scripts. Reads the environment that torchrun sets, writes one JSON file a rank, and never
starts, stops or slows the training beyond one synchronisation at each edge of a step.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pilotkit.device import Device, current_device
from pilotkit.errors import ConfigError, OutputError, Problem
from pilotkit.meter.clock import StepClock
from pilotkit.meter.rss import peak_rss_bytes
from pilotkit.meter.statistics import is_settled, summarize
from pilotkit.records.atomic import write_json
from pilotkit.variables import METER_FILE_VARIABLE

SCHEMA_VERSION = 1
SETTLED = 0.1
"""How much faster the second half of the counted steps may be than the first."""


class StepMeter:
    """Measures the steps of a training loop.

        meter = StepMeter(tokens_per_step=8192)
        for batch in loader:
            with meter.step():
                ...                                   # with meter.section("data_wait"): ... if you like
        meter.close()

    `path`: the file to write; None takes it from PILOTKIT_METER_FILE, and without that nothing is written, so that the
    lines may stay in a script that also runs alone. `tokens_per_step`: tokens of one step over all ranks.
    `num_warmup_steps`: first steps that are run and not counted. `synchronize`: waits for the device; None waits for
    the accelerator that the process uses when the step begins. Raises ConfigError for a number out of range.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        tokens_per_step: int,
        num_warmup_steps: int = 3,
        synchronize: Callable[[], None] | None = None,
    ) -> None:
        _check(tokens_per_step=tokens_per_step, num_warmup_steps=num_warmup_steps)
        chosen = path if path is not None else os.environ.get(METER_FILE_VARIABLE)
        self.path = Path(chosen) if chosen else None
        self._tokens_per_step = tokens_per_step
        self._num_warmup_steps = num_warmup_steps
        self._clock = StepClock(synchronize or _synchronize_current)
        self._result: dict[str, Any] | None = None

    def step(self) -> AbstractContextManager[None]:
        """Time one optimizer step, data wait included. Raises RuntimeError inside another step or after `close`."""
        if self._result is not None:
            raise RuntimeError("the meter is closed: no further step can be measured")
        return self._clock.step()

    def section(self, name: str) -> AbstractContextManager[None]:
        """Time a part of the current step; the metric is called `<name>_seconds`. See StepClock.section."""
        return self._clock.section(name)

    def close(self) -> dict[str, Any]:
        """Write the file and return its content; a second call returns the same.

        Rank 0 writes `path`, rank r `<name>-<r>.json` beside it.

        Keys: `schema_version`; `device`, its name; `metrics`, flat, unit in the suffix, `step_seconds` and the rates
        from the median step; `step_seconds`, every step, warm-up included; `notes`, what limits the figures.
        `settled`, whether the counted steps had stopped becoming faster. Memory is this rank's, over the whole life
        of the process.
        Raises OutputError when the file cannot be written.
        """
        if self._result is None:
            self._result = self._measured(current_device())
            if self.path is not None:
                _write(_path_of_rank(self.path, os.environ.get("RANK", "0")), self._result)
        return self._result

    def _measured(self, device: Device) -> dict[str, Any]:
        counted = self._clock.step_seconds[self._num_warmup_steps :]
        metrics: dict[str, float] = {
            "num_warmup_steps": min(self._num_warmup_steps, len(self._clock.step_seconds)),
            "num_measured_steps": len(counted),
            "warmup_seconds": sum(self._clock.step_seconds[: self._num_warmup_steps]),
            "world_size": int(os.environ.get("WORLD_SIZE", "1")),
            **_memory(device),
        }
        notes = []
        if counted:
            metrics.update(self._times(counted, world_size=int(metrics["world_size"])))
        else:
            notes.append(
                f"no step was counted: {len(self._clock.step_seconds)} were run and num_warmup_steps is "
                f"{self._num_warmup_steps}"
            )
        if metrics.get("num_alloc_retries"):
            notes.append("the allocator had to give memory back and ask again: step times are longer than they need be")
        return {
            "schema_version": SCHEMA_VERSION,
            "device": device.name,
            "metrics": metrics,
            "step_seconds": list(self._clock.step_seconds),
            "settled": not counted or is_settled(counted, window=max(len(counted) // 2, 1), tolerance=SETTLED),
            "notes": notes,
        }

    def _times(self, counted: list[float], *, world_size: int) -> dict[str, float]:
        steps = summarize(counted)
        tokens_per_second = self._tokens_per_step / steps.median
        times = {
            "tokens_per_step": self._tokens_per_step,
            "step_seconds": steps.median,
            "step_mean_seconds": steps.mean,
            "step_p95_seconds": steps.p95,
            "step_min_seconds": steps.minimum,
            "step_max_seconds": steps.maximum,
            "step_stddev_seconds": steps.stddev,
            "step_spread": steps.spread,
            "tokens_per_second": tokens_per_second,
            "tokens_per_second_per_device": tokens_per_second / world_size,
        }
        for name, seconds in self._clock.section_seconds.items():
            times[f"{name}_seconds"] = summarize(seconds[self._num_warmup_steps :]).median
        return times


def _memory(device: Device) -> dict[str, float]:
    reading = device.memory()
    found = {
        "peak_allocated_bytes": reading.peak_allocated_bytes,
        "peak_reserved_bytes": reading.peak_reserved_bytes,
        "device_used_bytes": reading.device_used_bytes,
        "device_total_bytes": reading.device_total_bytes,
        "num_alloc_retries": reading.num_alloc_retries,
        "peak_rss_bytes": peak_rss_bytes(),
    }
    return {name: value for name, value in found.items() if value is not None}


def _synchronize_current() -> None:
    current_device().synchronize()


def _path_of_rank(path: Path, rank: str) -> Path:
    return path if rank == "0" else path.with_name(f"{path.stem}-{rank}{path.suffix}")


def _write(path: Path, result: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, result)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error


def _check(*, tokens_per_step: int, num_warmup_steps: int) -> None:
    problems = []
    if tokens_per_step < 1:
        problems.append(Problem("tokens_per_step", tokens_per_step, "1 or more", "give the tokens of one step"))
    if num_warmup_steps < 0:
        problems.append(Problem("num_warmup_steps", num_warmup_steps, "0 or more", "give 0 to count every step"))
    if problems:
        raise ConfigError(problems)
