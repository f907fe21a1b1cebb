"""The pipeline ledger: what the whole run costs in time, part by part, and where each part's figure comes from.

Called by stage `budget`. Multiplies what earlier stages measured; never fills a gap with a guess: a part that
nobody measured is listed as not known and left out of the total by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilotkit.decide.timing import Timing, find_timing, step_timing
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

    `origin` is measured, estimated, given, projected or `not run`; `included_in` names the part whose seconds contain
    these, so that they are shown and not added twice. `each_seconds` is the mean of `samples`, `p95_seconds` their
    95th percentile and `spread` their coefficient of variation, where they are known.
    """

    part: str
    seconds: float | None
    count: int
    each_seconds: float | None
    origin: str
    how: str
    source_run_id: str | None = None
    included_in: str | None = None
    samples: int | None = None
    p95_seconds: float | None = None
    spread: float | None = None


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
        return self.line(STEPS).seconds

    @property
    def goodput(self) -> float | None:
        """Share of the total in which the model trains: step seconds over total seconds (0 to 1)."""
        steps, total = self.step_total_seconds, self.total_seconds
        return steps / total if steps is not None and total else None

    def line(self, part: str) -> LedgerLine:
        """The line of one part. Raises StopIteration for a part that the ledger does not have."""
        return next(line for line in self.lines if line.part == part)

    def to_details(self) -> list[dict[str, Any]]:
        """Plain data for the record, one dictionary a line."""
        return [dataclasses.asdict(line) for line in self.lines]


@dataclass(frozen=True)
class Given:
    """What the user or the stage itself knows about the parts around the run: seconds, None when not known.

    `measured` names those that were really timed by stage `budget`, with how.
    """

    download_seconds: float | None = None
    preprocess_seconds: float | None = None
    tokenize_seconds: float | None = None
    export_seconds: float | None = None
    copy_out_seconds: float | None = None
    measured: Mapping[str, str] = dataclasses.field(default_factory=dict)


def build_ledger(
    records: Mapping[str, Record],
    *,
    num_steps: int,
    num_evals: int,
    num_eval_batches: int,
    num_checkpoints: int,
    strategy: str,
    world_size: int,
    given: Given,
    num_starts: int = 1,
) -> Ledger:
    """Lay the run out in time: `records` by stage, counts of the whole run, the user's own figures.

    Steps come from `pilot` at this strategy and world size, or from `measure` when the strategy is `single`; where
    neither ran, from `estimate`. What one device measured and several will do is marked projected.
    """
    cost = _Costs(records, world_size=world_size)
    lines = [
        _given("download", given, "download_seconds"),
        _given("preprocessing", given, "preprocess_seconds", optional=True),
        _given("tokenising", given, "tokenize_seconds", optional=True),
        *_start(cost, strategy=strategy, count=num_starts),
        _steps(records, strategy=strategy, world_size=world_size, count=num_steps),
        dataclasses.replace(
            cost.line(DATA_STALLS, ("measure", "data_wait_seconds"), count=num_steps), included_in=STEPS
        ),
        *_communication(records, strategy=strategy, count=num_steps),
        cost.line("evaluation", ("measure", "eval_batch_seconds"), count=num_evals * num_eval_batches),
        cost.line(
            "checkpoint saves",
            # Of an asynchronous save only this part stops training.
            ("restore", "checkpoint_blocking_seconds"),
            ("restore", "checkpoint_save_seconds"),
            ("prove", "checkpoint_save_seconds"),
            count=num_checkpoints,
        ),
        cost.line("one restart", ("restore", "restart_seconds"), ("prove", "restart_seconds"), count=1),
        _given("export", given, "export_seconds", optional=True),
        _given("copy-out", given, "copy_out_seconds"),
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

    def line(self, part: str, *sources: tuple[str, str], count: int) -> LedgerLine:
        """`count` times the first figure found."""
        found = find_timing(self.records, *sources)
        if found is None:
            wanted = " or ".join(f"{metric} of {stage}" for stage, metric in sources)
            return LedgerLine(part, None, count, None, NOT_RUN, f"not known: no {wanted}")
        return self.multiply(part, found, count=count)

    def multiply(self, part: str, found: Timing, *, count: int) -> LedgerLine:
        """A line from one figure, with the reservation that the number of devices asks for."""
        how = f"{count} x {format_seconds(found.each_seconds)} ({found.name})"
        if found.num_devices == self.world_size:
            return _line(part, found, count=count, origin=found.origin, how=how)
        measured_on = found.num_devices
        where = f"measured on {_devices(measured_on)}" if measured_on is not None else "number of devices not recorded"
        how += f"; {where}, taken as the same on {self.world_size}: uncalibrated"
        return _line(part, found, count=count, origin="projected", how=how)


def _line(part: str, found: Timing, *, count: int, origin: str, how: str) -> LedgerLine:
    return LedgerLine(
        part,
        count * found.each_seconds,
        count,
        found.each_seconds,
        origin,
        how,
        found.record.run_id,
        samples=found.samples,
        p95_seconds=found.p95_seconds,
        spread=found.spread,
    )


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
    if strategy == "single" or find_timing(cost.records, whole) is None:
        return [cost.line(START, ("prove", "process_start_seconds"), count=count), *parts]
    return [cost.line(START, whole, count=count), *(dataclasses.replace(part, included_in=START) for part in parts)]


def _warm_up(cost: _Costs, *, count: int) -> LedgerLine:
    """What the first steps take beyond ordinary ones (compilation too); the steps themselves are among the steps.

    extra = warmup_seconds - num_warmup_steps * step_seconds, and never below zero.
    """
    measure = cost.records.get("measure")
    names = ("warmup_seconds", "num_warmup_steps", "step_seconds")
    if measure is None or any(name not in measure.metrics for name in names):
        return LedgerLine("warm-up", None, count, None, NOT_RUN, "not known: no warmup_seconds of measure")
    warmup, num_warmup_steps, step = (measure.metrics[name] for name in names)
    extra = max(0.0, warmup - num_warmup_steps * step)
    name = f"warmup_seconds of measure less {num_warmup_steps:.0f} ordinary steps"
    return cost.multiply("warm-up", Timing(extra, name, measure, samples=1, num_devices=1), count=count)


def _steps(records: Mapping[str, Record], *, strategy: str, world_size: int, count: int) -> LedgerLine:
    """All optimizer steps. More nodes than were piloted: the one-node step time, and the words that say so."""
    found = step_timing(records, strategy=strategy)
    if found is None:
        metric = "step_seconds of measure" if strategy == "single" else f"{strategy}_step_seconds of pilot"
        return LedgerLine(STEPS, None, count, None, NOT_RUN, f"not known: no {metric}")
    piloted = found.num_devices or 0
    if strategy == "single":
        return _Costs(records, world_size=1).multiply(STEPS, found, count=count)
    how = f"{count} x {format_seconds(found.each_seconds)} ({found.name} on {_devices(piloted)})"
    if piloted == world_size:
        return _line(STEPS, found, count=count, origin=found.origin, how=how)
    if piloted and world_size > piloted and world_size % piloted == 0:
        how += f", projected to {world_size}: {UNCALIBRATED_NETWORK}"
        return _line(STEPS, found, count=count, origin="projected", how=how)
    how = f"not known: {found.record.stage} ran {strategy} on {_devices(piloted)}, the run wants {world_size}"
    return LedgerLine(STEPS, None, count, None, NOT_RUN, how, found.record.run_id)


def _communication(records: Mapping[str, Record], *, strategy: str, count: int) -> list[LedgerLine]:
    """Time of the steps in which devices wait for each other; lies within the steps. One device has none."""
    if strategy == "single":
        return []
    part = "exposed communication"
    measured = find_timing(records, ("pilot", f"{strategy}_exposed_comm_seconds"))
    if measured is not None:
        how = f"{count} x {format_seconds(measured.each_seconds)} ({measured.name})"
        return [dataclasses.replace(_line(part, measured, count=count, origin="measured", how=how), included_in=STEPS)]
    pilot = records.get("pilot")
    alone = pilot.metrics.get("single_step_seconds") if pilot is not None else None
    together = step_timing(records, strategy=strategy)
    if pilot is None or alone is None or together is None or together.record is not pilot:
        how = f"not known: no {strategy}_exposed_comm_seconds of pilot"
        return [LedgerLine(part, None, count, None, NOT_RUN, how, included_in=STEPS)]
    each = max(0.0, together.each_seconds - alone)
    how = f"{count} x {format_seconds(each)} (a step of {strategy} less one of a device alone, pilot)"
    line = LedgerLine(part, count * each, count, each, "measured", how, pilot.run_id, included_in=STEPS)
    return [line]


def _given(part: str, given: Given, name: str, *, optional: bool = False) -> LedgerLine:
    """What the stage measured or the user said. `optional` parts that nobody named are taken not to exist."""
    seconds = getattr(given, name)
    if seconds is None and optional:
        how = f"none, unless budget.{name}=<seconds> says otherwise"
        return LedgerLine(part, 0.0, 0, None, "given", how)
    if seconds is None:
        return LedgerLine(part, None, 1, None, NOT_RUN, f"not known: give budget.{name}=<seconds>")
    if name in given.measured:
        return LedgerLine(part, seconds, 1, seconds, "measured", given.measured[name], samples=1)
    return LedgerLine(part, seconds, 1, seconds, "given", f"budget.{name}")


def _devices(count: int) -> str:
    return "1 device" if count == 1 else f"{count} devices"
