"""Stage `all`: every chapter in its order, from nothing to a verdict and a page.

A chapter that fails keeps later ones that start processes from running: they would only fail again. Those that read
records always run, so that there is a page that says what went wrong. An attempt after one that was ended takes over
the stages that it had done, and goes on with the one that was under way.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pilotkit.chapters import CHAPTERS
from pilotkit.errors import Interrupted
from pilotkit.records.record import Failure, Metrics, Record
from pilotkit.records.run_dir import RunDir
from pilotkit.records.search import find_records
from pilotkit.records.truths import INTERRUPTED
from pilotkit.report.tables import stage_table
from pilotkit.stages.execute import READERS, Order, announce, execute, open_record
from pilotkit.stages.run import StageResult
from pilotkit.stages.show import show

# An estimate keeps nothing from being tried: what can be run here knows better.
NOT_BLOCKING = ("estimate",)
BLOCKING = ("failed", "mismatch", "does_not_fit", "refused", "timed_out")
# No last words: a stage that the job's time limit ended says `timed_out`, and another attempt has time again.
NOT_LAST = (*INTERRUPTED, "vanished", "timed_out")


def run_all(order: Order) -> Record:
    """Run the built stages; the record of `all` holds the verdict and where the page is."""
    opened = open_record("all", order)
    records: dict[str, Record] = {}
    earlier = _Earlier.of(order, opened.run_dir.run_id)
    kept: list[str] = []
    overrides = [word for word in order.overrides if not word.startswith("stage=")]

    def work() -> StageResult:
        blocked = False
        for chapter in CHAPTERS:
            if not chapter.built or (blocked and chapter.stage not in READERS):
                continue
            if chapter.stage == "qualify" and order.config.hardware.device_type == "cpu":
                continue  # nobody reserves this machine; stage=qualify runs here when it is asked for
            order.console.line(f"{chapter.stage}: {chapter.question}", style="bold")
            record = earlier.last_word(chapter.stage, records)
            if record is not None:
                order.console.line(f"  done in an earlier attempt: {record.folder}")
                kept.append(chapter.stage)
            else:
                child = Order(
                    config=order.config,
                    launch_dir=order.launch_dir,
                    overrides=overrides,
                    console=order.console,
                    parent_run_id=opened.run_dir.run_id,
                    evidence=dict(records),
                    page=opened.run_dir.page,
                    provenance=order.provenance,
                    earlier=earlier.under_way(chapter.stage, records),
                )
                record = _execute(chapter.stage, child, done=len(records) - len(kept))
            show(record, order.console)
            announce(record, order.console, with_reason=True)
            records[chapter.stage] = record
            blocked = blocked or (record.status in BLOCKING and chapter.stage not in NOT_BLOCKING)
        return _result(records, kept)

    record = opened.close_with(work)
    order.console.table(stage_table(records.values()))
    verdict = record.details.get("verdict")
    if verdict:
        order.console.line(f"{verdict}: {opened.run_dir.page}", style="bold")
    return record


def _execute(stage: str, order: Order, *, done: int) -> Record:
    """`done` stages of this attempt hold whatever becomes of this one: they are a reason to go on in another."""
    try:
        return execute(stage, order)
    except Interrupted as interruption:
        if done:
            interruption.has_done(done)
        raise


@dataclasses.dataclass
class _Earlier:
    """The newest record of each stage that earlier attempts of this run have left."""

    records: dict[str, Record]

    @classmethod
    def of(cls, order: Order, run_id: str) -> _Earlier:
        if order.earlier is None:
            return cls({})
        found = find_records(Path(order.config.output_dir), name=order.config.name).records
        return cls({record.stage: record for record in found if record.parent_run_id == run_id})

    def last_word(self, stage: str, done: dict[str, Record]) -> Record | None:
        """What the stage has found already. Once a stage had to be run, those after it see what is new, and run too."""
        record = self._of_this_lock(stage, done)
        if record is None or record.status in NOT_LAST:
            return None
        return record if all(self.records.get(name) is found for name, found in done.items()) else None

    def under_way(self, stage: str, done: dict[str, Record]) -> RunDir | None:
        """The folder of the stage that was ended."""
        record = self._of_this_lock(stage, done)
        return RunDir(Path(record.folder)) if record is not None and record.status in NOT_LAST else None

    def _of_this_lock(self, stage: str, done: dict[str, Record]) -> Record | None:
        record = self.records.get(stage)
        if record is None or stage == "lock" or "lock" not in done:
            return record
        return record if record.lock_digest == done["lock"].lock_digest else None


def _result(records: dict[str, Record], kept: list[str]) -> StageResult:
    """`all` fails when a stage did; a run that does not fit, or cannot be tried here, is an answer."""
    broken = [record for record in records.values() if record.status in ("failed", "mismatch", "timed_out")]
    plan = records.get("plan")
    details = {
        "verdict": ((plan.details.get("verdict") or {}).get("verdict") if plan else None),
        "stages": {stage: {"run_id": record.run_id, "status": record.status} for stage, record in records.items()},
    }
    if kept:
        details["done_in_earlier_attempts"] = kept
    if "lock" in records:
        details["lock_digest"] = records["lock"].lock_digest  # the record's own field, as in every stage's record
    artifacts = {"page": "report.html"} if "report" in records and records["report"].status == "ok" else {}
    if not broken:
        return StageResult("ok", Metrics(), details, artifacts)
    words = "; ".join(
        f"{record.stage}: {record.problem.summary if record.problem else record.status}" for record in broken
    )
    return StageResult("failed", Metrics(), details, artifacts, Failure(words))
