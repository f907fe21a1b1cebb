"""Run one stage so that, whatever happens, its folder says what: log, overrides, configuration and a record.

Called by the front door and by `stage=all`. Knows no stage by name but `lock`, whose digest the others carry.
"""

from __future__ import annotations

import dataclasses
import importlib
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pilotkit.config.identity import config_digest
from pilotkit.config.load import dump
from pilotkit.config.schema import PilotConfig
from pilotkit.errors import ConfigError, Interrupted, OutputError, StageRefused
from pilotkit.provenance.light import light_provenance
from pilotkit.records import atomic
from pilotkit.records.owner import Owner
from pilotkit.records.record import Failure, Record
from pilotkit.records.run_dir import RunDir
from pilotkit.records.search import find_records, newest_by_stage
from pilotkit.stages.console import Console
from pilotkit.stages.gate import UNGATED, check_gate, pass_gate
from pilotkit.stages.run import Run, StageResult
from pilotkit.units import format_seconds

# These read every earlier record; the others only need to know what was pinned.
READERS = ("budget", "plan", "report")
# These go on where they were told to end. What was measured in part starts afresh.
CONTINUES = ("pilot", "all")


@dataclasses.dataclass(frozen=True)
class Order:
    """What to run and for whom. `evidence` None: the newest records of this study are looked up."""

    config: PilotConfig
    launch_dir: Path
    overrides: list[str]
    console: Console
    parent_run_id: str | None = None
    evidence: Mapping[str, Record] | None = None
    page: Path | None = None
    on_created: Callable[[RunDir], None] | None = None
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further lines of provenance: the job and the code of a sweep's point."""
    sweep_dir: Path | None = None
    """Folder of the sweep whose point this is."""
    earlier: RunDir | None = None
    """Folder of an earlier attempt that was ended; a stage that can goes on in it."""


def execute(stage: str, order: Order) -> Record:
    """Run a stage and return its record, `failed` and `refused` ones too.

    Raises what ends more than the stage, after it was recorded: Ctrl-C, a wrong configuration, an output folder
    that cannot be written.
    """
    module = importlib.import_module(f"pilotkit.stages.{stage}")
    evidence = order.evidence if order.evidence is not None else _evidence(stage, order.config)
    with_record = open_record(stage, order)
    lock = evidence.get("lock")
    # A new lock has its own digest, or none when it fails; never the one before.
    with_record.record.lock_digest = lock.lock_digest if lock and stage != "lock" else None
    run = Run(
        stage=stage,
        config=order.config,
        run_dir=with_record.run_dir,
        launch_dir=order.launch_dir,
        console=order.console,
        evidence=evidence,
        overrides=order.overrides,
        page=order.page or with_record.run_dir.page,
        sweep_dir=order.sweep_dir,
    )

    def work() -> StageResult:
        _gate(stage, order, run=run, record=with_record.record)
        result: StageResult = module.run(run)
        return result

    return with_record.close_with(work, phases=run.phases)


def _gate(stage: str, order: Order, *, run: Run, record: Record) -> None:
    """Compare what is here with the lock; the record keeps what was found, and whose evidence it is.

    Raises StageRefused when it must not run. `plan` starts nothing: it is told what drifted, and always runs.
    """
    if stage in UNGATED:
        return
    gate = check_gate(order.config, launch_dir=order.launch_dir, lock=run.evidence.get("lock"))
    if gate is None:
        return
    record.provenance["gate"] = gate.to_dict()
    if stage == "plan":
        run.drift = gate.words()
        return
    record.lock_digest = gate.digest
    pass_gate(gate, mode=order.config.lock.mode, console=order.console)


@dataclasses.dataclass
class OpenRecord:
    """A run's folder with a record that says `running`, until `close_with` replaces it."""

    run_dir: RunDir
    record: Record
    console: Console
    started: float
    outer_log: Path | None = None
    """The log of the run that this one is a part of."""

    def close_with(self, work: Callable[[], StageResult], *, phases: list[Any] | None = None) -> Record:
        """Do the work and record how it ended, whatever happens."""
        self._publish()
        try:
            result = work()
        except (StageRefused, ConfigError) as error:
            result = StageResult("refused", problem=Failure(str(error)))
            self._finish(result, phases)
            if isinstance(error, ConfigError):
                raise
            return self.record
        except (KeyboardInterrupt, SystemExit) as error:
            words = str(error) or "Ctrl-C"
            if isinstance(error, SystemExit):  # rich's answer to a reader that went away
                words = "a closed output: nobody reads it any more"
            status = error.status if isinstance(error, Interrupted) else "cancelled"
            self._finish(StageResult(status, problem=Failure(f"ended by {words}")), phases)
            raise
        except OSError as error:
            result = StageResult("failed", problem=Failure(_disk_words(error), traceback=traceback.format_exc()))
        except Exception as error:
            summary = f"{type(error).__name__}: {error}"
            result = StageResult("failed", problem=Failure(summary, traceback=traceback.format_exc()))
        self._finish(result, phases)
        return self.record

    def _finish(self, result: StageResult, phases: list[Any] | None) -> None:
        record = self.record
        record.status = result.status
        record.wall_seconds = time.monotonic() - self.started
        record.phases = list(phases or [])
        record.metrics, record.origins = result.metrics.values, result.metrics.origins
        record.details = dict(result.details)
        record.artifacts = {"log": self.run_dir.log.name, **result.artifacts}
        record.problem = result.problem
        record.lock_digest = record.details.pop("lock_digest", record.lock_digest)
        self._publish()
        if self.console.log == self.run_dir.log:
            self.console.log = self.outer_log

    def _publish(self) -> None:
        self.run_dir.write_record(self.record)


def open_record(stage: str, order: Order) -> OpenRecord:
    """Make the folder, and write down what is going to be done before it is done."""
    started = time.monotonic()
    config = order.config
    # Before there is a folder, as git may take its time: a folder without a record would explain nothing.
    provenance = {
        **light_provenance(exclude=[Path(config.output_dir)]),
        "driver": dataclasses.asdict(Owner.of_this_process()),
    }
    digest = config_digest(config)
    run_dir = _folder(stage, order)
    if order.on_created is not None:
        order.on_created(run_dir)
    try:
        atomic.write_text(run_dir.config, dump(config))
        atomic.write_text(run_dir.overrides, "".join(f"{override}\n" for override in order.overrides))
    except OSError as error:
        raise OutputError(f"{run_dir.path} cannot be written: {error.strerror or error}") from error
    outer_log, order.console.log = order.console.log, run_dir.log
    record = Record(
        run_id=run_dir.run_id,
        stage=stage,
        status="running",
        started_at=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        config=dataclasses.asdict(config),
        config_digest=digest,
        provenance={**provenance, **order.provenance},
        overrides=order.overrides,
        parent_run_id=order.parent_run_id,
        folder=str(run_dir.path),
    )
    return OpenRecord(run_dir, record, order.console, started, outer_log)


def _folder(stage: str, order: Order) -> RunDir:
    if order.earlier is not None and stage in CONTINUES:
        order.earlier.reopen()
        return order.earlier
    return RunDir.create(Path(order.config.output_dir), name=order.config.name, stage=stage)


def announce(record: Record, console: Console, *, with_reason: bool) -> None:
    """One line on how a stage ended, and one on why where nobody else will say it."""
    joint = " in" if record.status == "ok" else ","  # "does not fit in 12 s" would speak of time
    words = f"{record.stage}: {record.status.replace('_', ' ')}{joint} {format_seconds(record.wall_seconds)}"
    style = "green" if record.status == "ok" else "red" if record.status in ("failed", "mismatch") else "yellow"
    console.line(words, style=style)
    if record.problem is not None and (with_reason or record.status == "does_not_fit"):
        console.line(f"  {record.problem.summary}")


def _evidence(stage: str, config: PilotConfig) -> dict[str, Record]:
    wanted = None if stage in READERS else "lock"
    found = find_records(Path(config.output_dir), name=config.name, stage=wanted)
    return newest_by_stage(found.records, config_digest=config_digest(config))


def _disk_words(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{where}"
