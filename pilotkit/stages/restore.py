"""Stage `restore`: can we really resume? A run that stopped, in new processes, against a run that never did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pilotkit.errors import StageRefused
from pilotkit.launch.devices import refuse_process_count
from pilotkit.launch.outcome import Outcome
from pilotkit.records.record import Failure, Metrics
from pilotkit.stages.run import Run, StageResult, not_ok

Row = dict[str, str]


def run(run: Run) -> StageResult:
    """2k steps in one go; k steps, save, end; a new process loads and takes the other k. Then compare."""
    nproc, torchrun = _process_count(run)
    given = run.config.restore.path
    phases = ["restore_after"] if given else ["restore_uninterrupted", "restore_before", "restore_after"]
    outcomes: dict[str, Outcome] = {}
    for phase in phases:
        outcome = run.work(phase, nproc=nproc, torchrun=torchrun)
        if outcome.status != "ok":
            return not_ok(run, outcome, details={"comparison": [_row(phase, "FAIL", outcome.status)]})
        outcomes[phase] = outcome
    after = outcomes["restore_after"].result
    metrics = Metrics()
    metrics.add("given", num_steps=run.config.restore.num_steps, world_size=nproc)
    metrics.add("measured", after["metrics"], continued_loss=float(after["steps"][-1]["loss"]))
    details: dict[str, Any] = {"threads": run.threads, "steps": {p: o.result["steps"] for p, o in outcomes.items()}}
    if given:
        details["comparison"] = [_row("checkpoint", "PASS", f"{given} loads, and training goes on from its step")]
        details["comparison"] += [
            _row("continuation", "NOT RUN", "a given checkpoint has no uninterrupted run beside it")
        ]
        return StageResult("ok", metrics, details, {"checkpoint": given})
    reference, before = outcomes["restore_uninterrupted"].result, outcomes["restore_before"].result
    metrics.add("measured", before["metrics"], uninterrupted_loss=float(reference["steps"][-1]["loss"]))
    metrics.add("measured", max_loss_difference=_max_difference(reference, after))
    details["comparison"] = compare(reference, before, after, rtol=run.config.restore.rtol)
    artifacts = {"checkpoint": str(run.run_dir.checkpoints.relative_to(run.run_dir.path))}
    differing = [row for row in details["comparison"] if row["verdict"] == "FAIL"]
    if not differing:
        return StageResult("ok", metrics, details, artifacts)
    first = differing[0]
    problem = Failure(f"{first['component']} did not come back: {first['note']}")
    return StageResult("mismatch", metrics, details, artifacts, problem)


def compare(reference: dict[str, Any], before: dict[str, Any], after: dict[str, Any], *, rtol: float) -> list[Row]:
    """One row a component, in the order in which a difference would spread. `rtol` 0 is bitwise."""
    resumed = reference["steps"][len(before["steps"]) :]
    continued = after["steps"]
    return [
        _equal("step counter", [step["step"] for step in resumed], [step["step"] for step in continued]),
        _equal("token counter", reference["tokens_seen"], after["tokens_seen"]),
        _equal("data position", [step["row_ids"] for step in resumed], [step["row_ids"] for step in continued]),
        _equal("learning rate", [step["lr"] for step in resumed], [step["lr"] for step in continued]),
        *_fingerprints(reference["fingerprints"], after["fingerprints"], rtol=rtol),
        _close("losses", _numbers(resumed, "loss"), _numbers(continued, "loss"), rtol=rtol),
        _close("gradient norms", _numbers(resumed, "grad_norm"), _numbers(continued, "grad_norm"), rtol=rtol),
        _close("evaluation", [reference["eval_loss"]], [after["eval_loss"]], rtol=rtol),
    ]


def _fingerprints(reference: dict[str, Any], after: dict[str, Any], *, rtol: float) -> list[Row]:
    rows = []
    for component, ranks in reference.items():
        differing = [
            f"{rank} {name}"
            for rank, parts in ranks.items()
            for name in sorted(parts.keys() | after[component][rank].keys())
            if parts.get(name) != after[component][rank].get(name)
        ]
        num_parts = sum(len(parts) for parts in ranks.values())
        if not differing and not num_parts:
            continue  # this run has none, such as a scaler without fp16
        if not differing:
            rows.append(_row(component.replace("_", " "), "PASS", f"{num_parts} parts, bit for bit"))
        elif rtol > 0 and component in ("parameters", "optimizer"):
            note = (
                f"not bit for bit ({len(differing)} of {num_parts} parts); the losses are held to restore.rtol={rtol}"
            )
            rows.append(_row(component, "NOT RUN", note))
        else:
            note = f"{len(differing)} of {num_parts} parts differ, first {differing[0]}"
            rows.append(_row(component.replace("_", " "), "FAIL", note))
    return rows


def _equal(component: str, expected: Any, found: Any) -> Row:
    if expected == found:
        return _row(component, "PASS", "equal")
    return _row(component, "FAIL", f"{found} instead of {expected}")


def _close(component: str, expected: Sequence[float], found: Sequence[float], *, rtol: float) -> Row:
    if len(expected) != len(found):
        return _row(component, "FAIL", f"{len(found)} values instead of {len(expected)}")
    if not expected:
        return _row(component, "NOT RUN", "there is none")
    pairs = list(zip(expected, found, strict=True))
    if all(math.isclose(one, other, rel_tol=rtol, abs_tol=0.0) for one, other in pairs):
        words = "bit for bit" if rtol == 0 else f"within {rtol}"
        return _row(component, "PASS", f"{len(pairs)} values, {words}")
    index, (one, other) = next((i, p) for i, p in enumerate(pairs) if not math.isclose(*p, rel_tol=rtol, abs_tol=0.0))
    return _row(component, "FAIL", f"value {index + 1} of {len(pairs)}: {other!r} instead of {one!r}")


def _numbers(steps: Sequence[dict[str, Any]], name: str) -> list[float]:
    """What is not finite came as text, which float() reads."""
    return [float(step[name]) for step in steps if step[name] is not None]


def _max_difference(reference: dict[str, Any], after: dict[str, Any]) -> float:
    resumed = reference["steps"][-len(after["steps"]) :]
    pairs = zip(resumed, after["steps"], strict=True)
    return max(abs(float(one["loss"]) - float(other["loss"])) for one, other in pairs)


def _process_count(run: Run) -> tuple[int, bool]:
    visible = run.devices().visible
    if run.config.parallelism.strategy == "single":
        return 1, False
    asked = run.arithmetic.nproc_per_node
    refusal = refuse_process_count(asked, visible, allow_idle_devices=True)
    if refusal:
        raise StageRefused(refusal)
    return asked, True


def _row(component: str, verdict: str, note: str) -> Row:
    return {"component": component, "verdict": verdict, "note": note}
