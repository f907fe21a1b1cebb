"""Stage `numerics`: are lower precision and activation checkpointing worth it, each judged by itself?"""

from __future__ import annotations

import dataclasses
from typing import Any

from pilotkit.decide.precision import (
    REJECT,
    UNDECIDED,
    Judgement,
    Tolerances,
    judge_precision,
    without_finite_loss,
)
from pilotkit.decide.recomputation import trade
from pilotkit.errors import ConfigError
from pilotkit.launch.outcome import Outcome
from pilotkit.records.record import Metrics
from pilotkit.stages.run import Run, StageResult, not_ok

NONE = "none"
UNCOMPILED = (
    "the precisions were compared without torch.compile: what is looked for inside modules is not there in compiled "
    "code, which rounds in fewer places"
)


def run(run: Run) -> StageResult:
    """fp32 and the run's precision on the same batches; then the run's steps with each mode of recomputation."""
    run.devices()
    metrics = Metrics()
    details: dict[str, Any] = {"warnings": [UNCOMPILED] if run.config.train.compile else []}
    metrics.add("given", num_steps=run.config.numerics.num_steps)
    failed = _precision(run, metrics, details) or _recomputation(run, metrics, details)
    details["threads"] = run.threads
    # Also of a run that fails then: its reasons name the module in which the first NaN appeared.
    for text in [*details["warnings"], *_sentences(details)]:
        run.console.line(f"  {text}")
    return StageResult("ok", metrics, details) if failed is None else not_ok(run, failed, details=details)


def _precision(run: Run, metrics: Metrics, details: dict[str, Any]) -> Outcome | None:
    """Fill in the comparison; the outcome of a phase that failed for another reason than memory, else None."""
    name = run.config.precision.name
    outcome = run.work("numerics_reference")
    if outcome.status == "does_not_fit":
        words = f"the fp32 reference does not fit on one device, so {name} has nothing to be compared with"
        details["precision"] = dataclasses.asdict(Judgement(UNDECIDED, [words])) | {"name": name}
        return None
    if outcome.status != "ok":
        return outcome
    result = outcome.result
    details["reference"] = {key: result[key] for key in ("reference", "noise", "switches", "deterministic")}
    metrics.add("measured", repeatable=float(result["repeatable"]), fp32_eval_loss=result["reference"]["eval_loss"])
    if not result["repeatable"]:
        details["warnings"].append("two fp32 runs with one seed differ: something in this model is not deterministic")
    if name == "fp32":
        judged = result["reference"]
        details["warnings"] += _leak_warnings(judged, result["leaks"], expected="float32")
        if judged["ended"]:
            words = without_finite_loss(judged, name=name)
            details["precision"] = dataclasses.asdict(Judgement(REJECT, [words])) | {"name": name}
        return None
    outcome = run.work("numerics_candidate")
    if outcome.status != "ok":
        return outcome
    _compare(run, result, outcome.result, metrics, details)
    return None


def _compare(
    run: Run, reference: dict[str, Any], found: dict[str, Any], metrics: Metrics, details: dict[str, Any]
) -> None:
    options, precision = run.config.numerics, run.config.precision
    judgement = judge_precision(
        reference["reference"],
        found["candidate"],
        reference["noise"],
        name=precision.name,
        tolerances=Tolerances(
            loss_rtol=options.loss_rtol,
            max_grad_deviation=options.max_grad_deviation,
            reject_factor=options.reject_factor,
            max_lost_updates=options.max_lost_updates,
            max_skipped_steps=options.max_skipped_steps,
        ),
    )
    metrics.add("measured", judgement.figures, candidate_eval_loss=found["candidate"]["eval_loss"])
    details["warnings"] += _leak_warnings(found["candidate"], found["leaks"], expected=precision.compute_dtype)
    details["candidate"] = {key: found[key] for key in ("candidate", "switches", "leaks")}
    details["precision"] = {"name": precision.name, "verdict": judgement.verdict, "reasons": judgement.reasons}


def _leak_warnings(curve: dict[str, Any], leaks: list[str], *, expected: str) -> list[str]:
    """Modules with the dtype that each took its products in."""
    if not leaks:
        return []
    dtypes = {name: dtype for dtype, names in curve["dtypes"]["modules"].items() for name in names if dtype != expected}
    shown = ", ".join(f"{name} ({dtypes[name]})" for name in leaks[:5])
    more = f" and {len(leaks) - 5} more" if len(leaks) > 5 else ""
    mend = "look there for float(), double(), autocast(enabled=False), or a constant of that dtype"
    return [f"matrix products in another dtype than {expected}: {shown}{more}; {mend}"]


def _recomputation(run: Run, metrics: Metrics, details: dict[str, Any]) -> Outcome | None:
    """Run each mode in a process of its own. Not fitting is an answer: it is what recomputation is for."""
    found: dict[str, dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    details["recomputation"] = rows
    for mode in run.config.numerics.modes:
        try:
            outcome = run.work(f"numerics_{mode}")
        except ConfigError as error:
            if mode == run.config.activation_checkpointing.mode:
                raise
            rows.append({"mode": mode, "status": "refused", "note": error.problems[0].fix})
            continue
        if outcome.status not in ("ok", "does_not_fit"):
            return outcome
        rows.append(
            {"mode": mode, "status": outcome.status, "note": outcome.failure.summary if outcome.failure else ""}
        )
        if outcome.status == "ok":
            found[mode] = outcome.result
            metrics.add("measured", {f"{mode}_{name}": value for name, value in outcome.result["metrics"].items()})
    for row in rows:
        mode = row["mode"]
        if mode == NONE or mode not in found or NONE not in found:
            continue
        traded = trade(mode, found[mode], found[NONE])
        row.update(note=traded.text, differs=traded.differs)
        metrics.add(
            "measured", {f"{mode}_saved_bytes": traded.saved_bytes, f"{mode}_added_seconds": traded.added_seconds}
        )
        metrics.add("measured", {f"{mode}_saved_bytes_per_second": traded.saved_per_second})
    return None


def _sentences(details: dict[str, Any]) -> list[str]:
    precision = details.get("precision")
    lines = [f"{precision['name']}: {precision['verdict']}", *precision["reasons"]] if precision else []
    return lines + [row["note"] for row in details.get("recomputation", ()) if row["note"]]
