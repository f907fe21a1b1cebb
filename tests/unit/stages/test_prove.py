"""Stage `prove`: the card, whole or up to where it broke."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pilotkit.launch.outcome import Outcome
from pilotkit.records.record import Failure
from pilotkit.records.run_dir import RunDir
from pilotkit.stages import prove
from pilotkit.stages.run import Run

MakeRun = Callable[..., Run]
SAVED = {
    "num_params": 800_000, "num_steps": 2, "first_loss": 5.5, "last_loss": 5.25, "eval_loss": 5.125,
    "eval_seconds": 0.5, "model_load_seconds": 0.25, "checkpoint_bytes": 2048, "checkpoint_save_seconds": 0.125,
}  # fmt: skip
RESTORED = {"restored_eval_loss": 5.125, "checkpoint_load_seconds": 0.0625}
CRASHED = Outcome("failed", 1.0, failure=Failure("rank 0: ValueError: x", rank=0))


def verdicts(details: dict[str, Any]) -> str:
    assert [row["item"] for row in details["card"]] == list(prove.ITEMS)
    return " ".join({"PASS": "+", "FAIL": "x", "NOT RUN": "."}[row["verdict"]] for row in details["card"])


def test_a_card_that_passes(make_run: MakeRun, workers: Any) -> None:
    workers.outcomes = {
        "prove": Outcome("ok", 1.0, result={"metrics": dict(SAVED)}),
        "prove_restore": Outcome("ok", 1.0, result={"metrics": dict(RESTORED)}),
    }
    found = prove.run(make_run("prove"))
    assert (found.status, found.problem) == ("ok", None)
    assert found.details["card"] == [
        {"item": "load", "verdict": "PASS", "note": "800 k parameters, 250.0 ms"},
        {"item": "optimizer steps", "verdict": "PASS", "note": "2 complete steps, loss 5.5000 to 5.2500"},
        {"item": "evaluate", "verdict": "PASS", "note": "loss 5.1250, 500.0 ms"},
        {"item": "checkpoint save", "verdict": "PASS", "note": "2.00 KiB, 125.0 ms"},
        {"item": "checkpoint restore", "verdict": "PASS", "note": "by a new process, 62.5 ms"},
        {"item": "evaluate again", "verdict": "PASS", "note": "loss 5.125000, 5.125000 before the save"},
    ]
    assert found.metrics.values == {**SAVED, **RESTORED}
    assert found.artifacts == {"checkpoint": "checkpoints"}


@pytest.mark.parametrize(
    ("loss", "rtol", "status"),
    [(5.125 * (1 + 1e-7), 0.0, "mismatch"), (5.125 * (1 + 1e-7), 1e-6, "ok"), (5.2, 1e-6, "mismatch")],
    ids=["bitwise", "within the tolerance", "over it"],
)
def test_another_loss_after_the_restore(make_run: MakeRun, workers: Any, loss: float, rtol: float, status: str) -> None:
    workers.outcomes = {
        "prove": Outcome("ok", 1.0, result={"metrics": dict(SAVED)}),
        "prove_restore": Outcome("ok", 1.0, result={"metrics": {**RESTORED, "restored_eval_loss": loss}}),
    }
    found = prove.run(make_run("prove", {"restore.rtol": rtol}))
    assert found.status == status
    assert verdicts(found.details) == ("+ + + + + +" if status == "ok" else "+ + + + + x")
    if found.problem:
        assert found.problem.summary == "the restored model evaluates to another loss"


@pytest.mark.parametrize(
    ("where", "num_lines", "card"),
    [
        ("building the model", 0, "x . . . . ."),
        ("a step", 1, "+ x . . . ."),
        ("evaluation", 3, "+ + x . . ."),
        ("checkpoint save", 4, "+ + + x . ."),
        # kill -9 leaves no traceback: the phase's own progress tells (a model, two steps, an evaluation, a save)
        (None, 0, "x . . . . ."),
        (None, 1, "+ x . . . ."),
        (None, 2, "+ x . . . ."),
        (None, 3, "+ + x . . ."),
        (None, 4, "+ + + x . ."),
        (None, 5, "+ + + x . ."),
    ],
)
def test_the_first_process_fails(make_run: MakeRun, workers: Any, where: str | None, num_lines: int, card: str) -> None:
    workers.outcomes["prove"] = CRASHED
    workers.on_start = _leave(where, num_lines)
    found = prove.run(make_run("prove"))
    assert (found.status, verdicts(found.details)) == ("failed", card)
    (failed,) = [row for row in found.details["card"] if row["verdict"] == "FAIL"]
    assert failed["note"] == "rank 0: ValueError: x"


@pytest.mark.parametrize(
    ("where", "num_lines", "card"),
    [
        ("building the model", 0, "+ + + + x ."),
        ("checkpoint load", 1, "+ + + + x ."),
        ("evaluation", 2, "+ + + + + x"),
        (None, 1, "+ + + + x ."),
        (None, 2, "+ + + + + x"),
    ],
)
def test_the_second_process_fails(
    make_run: MakeRun, workers: Any, where: str | None, num_lines: int, card: str
) -> None:
    workers.outcomes = {"prove": Outcome("ok", 1.0, result={"metrics": dict(SAVED)}), "prove_restore": CRASHED}
    workers.on_start = _leave(where, num_lines)
    found = prove.run(make_run("prove"))
    assert (found.status, verdicts(found.details)) == ("failed", card)
    assert found.details["card"][0]["note"] == "800 k parameters, 250.0 ms"


def _leave(where: str | None, num_lines: int) -> Callable[[str, RunDir], None]:
    def leave(phase: str, run_dir: RunDir) -> None:
        folder = run_dir.phase(phase)
        folder.path.mkdir(parents=True)
        folder.progress.write_text("{}\n" * num_lines, encoding="utf-8")
        if where:
            folder.error(0).write_text(json.dumps({"rank": 0, "where": where}), encoding="utf-8")

    return leave
