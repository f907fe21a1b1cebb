"""The pipeline ledger: what the whole run costs in time, part by part, and where each part's figure comes from.

Called by stage `budget`. Multiplies what earlier stages measured; never fills a gap with a guess: a part that
nobody measured is listed as not known and left out of the total by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilotkit.records.record import Record
from pilotkit.units import format_seconds

START = "process start"
STEPS = "steps"
DATA_STALLS = "data stalls"
NOT_RUN = "not run"
UNCALIBRATED_NETWORK = "uncalibrated, no network cost measured"


@dataclass(frozen=True)
class LedgerLine:
    """One part: `seconds = count * each_seconds`, or None when not known.

    `origin` is measured, given, projected or `not run`; `included_in` names the part whose seconds contain these,
    so that they are shown and not added twice.
    """

    part: str
    seconds: float | None
    count: int
    each_seconds: float | None
    origin: str
    how: str
    source_run_id: str | None = None
    included_in: str | None = None


@dataclass(frozen=True)
class Ledger:
    """All parts in the order in which a run meets them. `unknown` names the parts that `total_seconds` lacks.

    `total_seconds` is None when the steps themselves are not known: the rest would not be a total of anything.
    """

    lines: list[LedgerLine]
    total_seconds: float | None
    unknown: list[str]

    @property
    def step_total_seconds(self) -> float | None:
        """Seconds of all optimizer steps, or None."""
        return next(line.seconds for line in self.lines if line.part == STEPS)

    @property
    def goodput(self) -> float | None:
        """Share of the total in which the model trains: step seconds over total seconds (0 to 1)."""
        steps, total = self.step_total_seconds, self.total_seconds
        return steps / total if steps is not None and total else None

    def to_details(self) -> list[dict[str, Any]]:
        """Plain data for the record, one dictionary a line."""
        return [dataclasses.asdict(line) for line in self.lines]


def build_ledger(
    records: Mapping[str, Record],
    *,
    num_steps: int,
    num_evals: int,
    num_eval_batches: int,
    num_checkpoints: int,
    num_starts: int = 1,
    download_seconds: float | None,
    copy_out_seconds: float | None,
    strategy: str,
    world_size: int,
) -> Ledger:
    """Lay the run out in time: `records` by stage, counts of the whole run, the user's own figures in seconds.

    Steps come from `pilot` at this strategy and world size, or from `measure` when the strategy is `single`.
    What one device measured and several will do is marked projected.
    """
    cost = _Costs(records, world_size=world_size)
    lines = [
        _given("download", download_seconds, option="budget.download_seconds"),
        *_start(cost, strategy=strategy, count=num_starts),
        _steps(records, strategy=strategy, world_size=world_size, count=num_steps),
        dataclasses.replace(
            cost.line(DATA_STALLS, ("measure", "data_wait_seconds"), count=num_steps), included_in=STEPS
        ),
        cost.line("evaluation", ("measure", "eval_batch_seconds"), count=num_evals * num_eval_batches),
        cost.line(
            "checkpoint saves",
            ("restore", "checkpoint_save_seconds"),
            ("prove", "checkpoint_save_seconds"),
            count=num_checkpoints,
        ),
        cost.line("one restart", ("restore", "restart_seconds"), ("prove", "restart_seconds"), count=1),
        _given("copy-out", copy_out_seconds, option="budget.copy_out_seconds"),
    ]
    added = [line for line in lines if line.included_in is None]
    steps_known = any(line.part == STEPS and line.seconds is not None for line in added)
    return Ledger(
        lines=lines,
        total_seconds=sum(line.seconds or 0.0 for line in added) if steps_known else None,
        unknown=[line.part for line in added if line.seconds is None],
    )


@dataclass(frozen=True)
class _Costs:
    """Looks a figure up in the records, and says whether it was measured on as many devices as the run will use."""

    records: Mapping[str, Record]
    world_size: int

    def find(self, *sources: tuple[str, str]) -> tuple[Record, str, float] | None:
        """The first (stage, metric) that some record has."""
        for stage, metric in sources:
            record = self.records.get(stage)
            if record is not None and metric in record.metrics:
                return record, metric, record.metrics[metric]
        return None

    def line(self, part: str, *sources: tuple[str, str], count: int) -> LedgerLine:
        """`count` times the first figure found."""
        found = self.find(*sources)
        if found is None:
            wanted = " or ".join(f"{metric} of {stage}" for stage, metric in sources)
            return LedgerLine(part, None, count, None, NOT_RUN, f"not known: no {wanted}")
        record, metric, each = found
        return self.multiply(part, each, count=count, record=record, name=f"{metric} of {record.stage}")

    def multiply(self, part: str, each: float, *, count: int, record: Record, name: str) -> LedgerLine:
        """A line from one figure, with the reservation that the number of devices asks for."""
        how = f"{count} x {format_seconds(each)} ({name})"
        alone = 1 if record.stage in ("prove", "measure") else None
        measured_on = record.metrics.get("world_size", alone)
        if measured_on == self.world_size:
            return LedgerLine(part, count * each, count, each, "measured", how, record.run_id)
        where = (
            f"measured on {_devices(int(measured_on))}" if measured_on is not None else "number of devices not recorded"
        )
        how += f"; {where}, taken as the same on {self.world_size}: uncalibrated"
        return LedgerLine(part, count * each, count, each, "projected", how, record.run_id)


def _start(cost: _Costs, *, strategy: str, count: int) -> list[LedgerLine]:
    """From the launch to steady steps.

    A piloted strategy was timed from its launch to the end of its first step, which holds the other parts.
    """
    parts = [
        cost.line("model load", ("prove", "model_load_seconds"), count=count),
        cost.line("first batch", ("prove", "first_batch_seconds"), ("prove", "data_open_seconds"), count=count),
        _warm_up(cost, count=count),
    ]
    whole = ("pilot", f"{strategy}_start_seconds")
    if strategy == "single" or cost.find(whole) is None:
        return [cost.line(START, ("prove", "process_start_seconds"), count=count), *parts]
    return [cost.line(START, whole, count=count), *(dataclasses.replace(part, included_in=START) for part in parts)]


def _warm_up(cost: _Costs, *, count: int) -> LedgerLine:
    """What the first steps take beyond ordinary ones; the steps themselves are counted among the steps.

    extra = warmup_seconds - num_warmup_steps * step_seconds, and never below zero.
    """
    measure = cost.records.get("measure")
    names = ("warmup_seconds", "num_warmup_steps", "step_seconds")
    if measure is None or any(name not in measure.metrics for name in names):
        return LedgerLine("warm-up", None, count, None, NOT_RUN, "not known: no warmup_seconds of measure")
    warmup, num_warmup_steps, step = (measure.metrics[name] for name in names)
    extra = max(0.0, warmup - num_warmup_steps * step)
    name = f"warmup_seconds of measure less {num_warmup_steps:.0f} ordinary steps"
    return cost.multiply("warm-up", extra, count=count, record=measure, name=name)


def _steps(records: Mapping[str, Record], *, strategy: str, world_size: int, count: int) -> LedgerLine:
    """All optimizer steps. More nodes than were piloted: the one-node step time, and the words that say so."""
    if strategy == "single":
        return _Costs(records, world_size=1).line(STEPS, ("measure", "step_seconds"), count=count)
    metric = f"{strategy}_step_seconds"
    pilot = records.get("pilot")
    if pilot is None or metric not in pilot.metrics:
        return LedgerLine(STEPS, None, count, None, NOT_RUN, f"not known: no {metric} of pilot")
    each, piloted = pilot.metrics[metric], int(pilot.metrics.get("world_size", 0))
    how = f"{count} x {format_seconds(each)} ({metric} of pilot on {_devices(piloted)})"
    if piloted == world_size:
        return LedgerLine(STEPS, count * each, count, each, "measured", how, pilot.run_id)
    if piloted and world_size > piloted and world_size % piloted == 0:
        how += f", projected to {world_size}: {UNCALIBRATED_NETWORK}"
        return LedgerLine(STEPS, count * each, count, each, "projected", how, pilot.run_id)
    how = f"not known: pilot ran {strategy} on {_devices(piloted)}, the run wants {world_size}"
    return LedgerLine(STEPS, None, count, None, NOT_RUN, how, pilot.run_id)


def _given(part: str, seconds: float | None, *, option: str) -> LedgerLine:
    if seconds is None:
        return LedgerLine(part, None, 1, None, NOT_RUN, f"not known: give {option}=<seconds>")
    return LedgerLine(part, seconds, 1, seconds, "given", f"{option}")


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"
