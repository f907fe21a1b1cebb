"""Stage `prove`: does one complete step work on one device, checkpoint and restore included?"""

from __future__ import annotations

import math
from typing import Any

from pilotkit.doubts import unreached_doubts
from pilotkit.launch.outcome import Outcome
from pilotkit.records.record import Failure, Metrics
from pilotkit.stages.run import Run, StageResult, not_ok
from pilotkit.units import format_bytes, format_count, format_seconds

ITEMS = ("load", "optimizer steps", "evaluate", "checkpoint save", "checkpoint restore", "evaluate again")
# Where a traceback ended, by the words of `pilotkit.worker.failure`, and which item that is.
FAILED_ITEM = {
    "prove": {"building the model": 0, "a step": 1, "evaluation": 2, "checkpoint save": 3},
    "prove_restore": {"building the model": 4, "checkpoint load": 4, "evaluation": 5},
}


def run(run: Run) -> StageResult:
    """One process trains, evaluates and saves; a second one restores and evaluates the same rows."""
    run.devices()
    first = run.work("prove")
    if first.status != "ok":
        return not_ok(run, first, details={"card": _card_until(_failed_item(run, "prove"), first)})
    second = run.work("prove_restore")
    saved = first.result["metrics"]
    if second.status != "ok":
        failed = _failed_item(run, "prove_restore")
        card = [*_first_rows(saved), *_card_until(failed, second)[len(_first_rows(saved)) :]]
        return not_ok(run, second, details={"card": card})
    restored = second.result["metrics"]
    metrics = Metrics()
    metrics.add("measured", {**saved, **restored})
    tolerance = run.config.restore.rtol
    same = math.isclose(saved["eval_loss"], restored["restored_eval_loss"], rel_tol=tolerance, abs_tol=0.0)
    note = f"loss {restored['restored_eval_loss']:.6f}, {saved['eval_loss']:.6f} before the save"
    card = [
        *_first_rows(saved),
        _row(4, "PASS", f"by a new process, {format_seconds(restored['checkpoint_load_seconds'])}"),
        _row(5, "PASS" if same else "FAIL", note),
    ]
    warnings = list(first.result.get("overridden", [])) + unreached_doubts(first.result.get("unreached"))
    for warning in warnings:
        run.console.line(f"  note: {warning}")
    details = {"card": card, "threads": run.threads, "warnings": warnings}
    artifacts = {"checkpoint": str(run.run_dir.checkpoints.relative_to(run.run_dir.path))}
    if not same:
        problem = Failure("the restored model evaluates to another loss", cause=note)
        return StageResult("mismatch", metrics, details, artifacts, problem)
    return StageResult("ok", metrics, details, artifacts)


def _first_rows(saved: dict[str, Any]) -> list[dict[str, str]]:
    improved = f"loss {saved['first_loss']:.4f} to {saved['last_loss']:.4f}"
    size = format_bytes(saved["checkpoint_bytes"])
    return [
        _row(
            0, "PASS", f"{format_count(saved['num_params'])} parameters, {format_seconds(saved['model_load_seconds'])}"
        ),
        _row(1, "PASS", f"{saved['num_steps']} complete steps, {improved}"),
        _row(2, "PASS", f"loss {saved['eval_loss']:.4f}, {format_seconds(saved['eval_seconds'])}"),
        _row(3, "PASS", f"{size}, {format_seconds(saved['checkpoint_save_seconds'])}"),
    ]


def _card_until(failed: int, outcome: Outcome) -> list[dict[str, str]]:
    """Everything before the item that failed is passed, everything after it was not run."""
    summary = outcome.failure.summary if outcome.failure else outcome.status
    verdicts = ["PASS"] * failed + ["FAIL"] + ["NOT RUN"] * (len(ITEMS) - failed - 1)
    return [_row(index, verdict, summary if index == failed else "") for index, verdict in enumerate(verdicts)]


def _failed_item(run: Run, phase: str) -> int:
    """By the traceback, where a rank left one; else, as after kill -9, by how far the phase had told of itself."""
    folder = run.run_dir.phase(phase)
    places = [error.get("where", "") for error in folder.errors()]
    if places:
        return FAILED_ITEM[phase].get(places[0], min(FAILED_ITEM[phase].values()))
    num_lines = len(folder.progress.read_bytes().splitlines()) if folder.progress.exists() else 0
    if phase == "prove_restore":
        return 4 if num_lines < 2 else 5
    # One line for the model, one a step, one each for the evaluation and the save.
    num_steps = run.config.prove.num_steps
    return 0 if num_lines == 0 else 1 if num_lines <= num_steps else min(num_lines - num_steps + 1, 3)


def _row(index: int, verdict: str, note: str) -> dict[str, str]:
    return {"item": ITEMS[index], "verdict": verdict, "note": note}
