"""Stage `all`: every chapter in its order, from nothing to a verdict and a page.

A chapter that fails keeps later ones that start processes from running: they would only fail again. Those that read
records always run, so that there is a page that says what went wrong.
"""

from __future__ import annotations

from pilotkit.chapters import CHAPTERS
from pilotkit.records.record import Failure, Metrics, Record
from pilotkit.report.tables import stage_table
from pilotkit.stages.execute import READERS, Order, announce, execute, open_record
from pilotkit.stages.run import StageResult
from pilotkit.stages.show import show

# An estimate keeps nothing from being tried: what can be run here knows better.
NOT_BLOCKING = ("estimate",)
BLOCKING = ("failed", "mismatch", "does_not_fit", "refused", "timed_out")


def run_all(order: Order) -> Record:
    """Run the built stages; the record of `all` holds the verdict and where the page is."""
    opened = open_record("all", order)
    records: dict[str, Record] = {}
    overrides = [word for word in order.overrides if not word.startswith("stage=")]

    def work() -> StageResult:
        blocked = False
        for chapter in CHAPTERS:
            if not chapter.built or (blocked and chapter.stage not in READERS):
                continue
            if chapter.stage == "qualify" and order.config.hardware.device_type == "cpu":
                continue  # nobody reserves this machine; stage=qualify runs here when it is asked for
            order.console.line(f"{chapter.stage}: {chapter.question}", style="bold")
            child = Order(
                config=order.config,
                launch_dir=order.launch_dir,
                overrides=overrides,
                console=order.console,
                parent_run_id=opened.run_dir.run_id,
                evidence=dict(records),
                page=opened.run_dir.page,
                provenance=order.provenance,
            )
            record = execute(chapter.stage, child)
            show(record, order.console)
            announce(record, order.console, with_reason=True)
            records[chapter.stage] = record
            blocked = blocked or (record.status in BLOCKING and chapter.stage not in NOT_BLOCKING)
        return _result(records)

    record = opened.close_with(work)
    order.console.table(stage_table(records.values()))
    verdict = record.details.get("verdict")
    if verdict:
        order.console.line(f"{verdict}: {opened.run_dir.page}", style="bold")
    return record


def _result(records: dict[str, Record]) -> StageResult:
    """`all` fails when a stage did; a run that does not fit, or cannot be tried here, is an answer."""
    broken = [record for record in records.values() if record.status in ("failed", "mismatch", "timed_out")]
    plan = records.get("plan")
    details = {
        "verdict": ((plan.details.get("verdict") or {}).get("verdict") if plan else None),
        "stages": {stage: {"run_id": record.run_id, "status": record.status} for stage, record in records.items()},
    }
    if "lock" in records:
        details["lock_digest"] = records["lock"].lock_digest  # the record's own field, as in every stage's record
    artifacts = {"page": "report.html"} if "report" in records and records["report"].status == "ok" else {}
    if not broken:
        return StageResult("ok", Metrics(), details, artifacts)
    words = "; ".join(
        f"{record.stage}: {record.problem.summary if record.problem else record.status}" for record in broken
    )
    return StageResult("failed", Metrics(), details, artifacts, Failure(words))
