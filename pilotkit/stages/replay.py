"""Stage `replay`: run a recorded stage again, from its own configuration and lock, and say whether it finds the same.

The run again lies within this one's folder, so that it is nobody's evidence but this comparison's.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pilotkit.config.load import load_file
from pilotkit.config.schema import PilotConfig
from pilotkit.decide.replay import DIFFERENT, Compared, Tolerance, compare_results, overall
from pilotkit.errors import ConfigError, Problem, RecordError
from pilotkit.records.record import Failure, Metrics, Record
from pilotkit.records.run_dir import RunDir
from pilotkit.records.search import find_records
from pilotkit.stages.execute import Order, execute
from pilotkit.stages.gate import short_line
from pilotkit.stages.run import Run, StageResult


def run(run: Run) -> StageResult:
    """Run the stage again and compare what every phase left. Raises ConfigError when `replay.run` is no such run."""
    options = run.config.replay
    folder = RunDir(Path(options.run or ""))
    before, config = _recorded(folder)
    lock = _lock_of(before, config)
    again = dataclasses.replace(
        config,
        output_dir=str(run.run_dir.again),
        replay=dataclasses.replace(config.replay, warmup_steps=_warmup_steps(folder, before), rows_of=str(folder.path)),
        # Whatever the record was made under: a drift is a finding here, not a reason to stop.
        lock=dataclasses.replace(config.lock, mode="write", path=None),
    )
    order = Order(
        config=again,
        launch_dir=run.launch_dir,
        overrides=before.overrides,
        console=run.console,
        parent_run_id=run.run_dir.run_id,
        evidence={} if lock is None else {"lock": lock},
    )
    after = execute(before.stage, order)
    tolerance = Tolerance(numerics=options.rtol, time=options.time_rtol)
    rows = [
        *_setting(before, after, lock),
        *_phases(folder, RunDir(Path(again.output_dir, again.name, after.stage, after.run_id)), before, tolerance),
    ]
    for row in rows:
        run.console.line(f"  {row.component}: {row.verdict} ({row.note})")
    verdict = overall(rows)
    metrics = Metrics()
    metrics.add("measured", num_components=len(rows))
    details: dict[str, Any] = {
        "replayed": {"run_id": before.run_id, "stage": before.stage, "status": before.status},
        "verdict": verdict,
        "comparison": [dataclasses.asdict(row) for row in rows],
    }
    run.console.line(f"  {before.stage} {before.run_id}, run again: {verdict}", style="bold")
    if verdict != DIFFERENT:
        return StageResult("ok", metrics, details)
    first = next(row for row in rows if row.verdict == DIFFERENT)
    return StageResult("mismatch", metrics, details, problem=Failure(f"{first.component} is different: {first.note}"))


def _recorded(folder: RunDir) -> tuple[Record, PilotConfig]:
    try:
        record = folder.read_record()
        config = load_file(folder.config)
    except (RecordError, OSError) as error:
        raise ConfigError([_problem(folder, f"{error}")]) from error
    if not record.phases:
        raise ConfigError([_problem(folder, f"stage {record.stage} started no worker: there is nothing to run again")])
    return record, config


def _warmup_steps(folder: RunDir, before: Record) -> dict[str, int]:
    """By phase: warm-up ends when the clock says so, and another number of steps would be other losses."""
    found = {phase.name: folder.phase(phase.name).read_result() or {} for phase in before.phases}
    counts = {name: result.get("metrics", {}).get("num_warmup_steps") for name, result in found.items()}
    return {name: int(count) for name, count in counts.items() if count is not None}


def _problem(folder: RunDir, fix: str) -> Problem:
    allowed = "the folder of a run of a stage that starts workers (outputs/<name>/<stage>/<run id>)"
    return Problem("replay.run", str(folder.path), allowed, fix)


def _lock_of(record: Record, config: PilotConfig) -> Record | None:
    """The lock that the record was made under, looked for beside it."""
    locks = find_records(Path(config.output_dir), name=config.name, stage="lock").records
    return next((lock for lock in reversed(locks) if lock.lock_digest == record.lock_digest is not None), None)


def _setting(before: Record, after: Record, lock: Record | None) -> list[Compared]:
    """Lock and ending, ahead of the numbers: they explain a difference."""
    rows = []
    gate = after.provenance.get("gate")
    if gate is None:
        why = "the record has no lock" if lock is None and before.lock_digest is None else "its lock was not found"
        rows.append(Compared("lock", "within noise", f"not compared: {why}"))
    else:
        drift = [short_line(f"{item['field']}: {item['was']} -> {item['now']}") for item in gate["drift"]]
        rows.append(Compared("lock", DIFFERENT, "; ".join(drift)) if drift else Compared("lock", "same", "no drift"))
    words = f"{before.status} before, {after.status} now"
    rows.append(Compared("ending", "same" if before.status == after.status else DIFFERENT, words))
    return rows


def _phases(old: RunDir, new: RunDir, before: Record, tolerance: Tolerance) -> list[Compared]:
    rows = []
    for phase in before.phases:
        one, other = old.phase(phase.name).read_result(), new.phase(phase.name).read_result()
        if one is None and other is None:
            continue
        for row in compare_results(one or {}, other or {}, tolerance=tolerance):
            rows.append(dataclasses.replace(row, component=f"{phase.name}: {row.component}"))
    return rows
