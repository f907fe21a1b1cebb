"""Stage `restore`: a run that stopped against one that never did, component by component."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from pilotkit.launch.outcome import Outcome
from pilotkit.records.record import Failure
from pilotkit.stages import restore
from pilotkit.stages.restore import compare
from pilotkit.stages.run import Run

Trace = dict[str, Any]


def step(number: int, **more: Any) -> dict[str, Any]:
    values = {"loss": 5.0 / number, "grad_norm": 1.0, "lr": 0.1, "row_ids": [[number], [number + 1]], "skipped": False}
    return {"step": number, **values, **more}


def finished(*numbers: int) -> Trace:
    parts = {"rank 0": {"w": "aa", "b": "bb"}, "rank 1": {"w": "aa", "b": "bb"}}
    fingerprints = {name: copy.deepcopy(parts) for name in ("parameters", "optimizer", "random_states")}
    fingerprints["scaler"] = {"rank 0": {}, "rank 1": {}}
    return {
        "steps": [step(number) for number in numbers],
        "fingerprints": fingerprints,
        "tokens_seen": 1024,
        "eval_loss": 2.5,
    }


@pytest.fixture
def traces() -> tuple[Trace, Trace, Trace]:
    """What never stopped, what was saved after two steps, what went on from there."""
    return finished(1, 2, 3, 4), {"steps": [step(1), step(2)], "metrics": {"checkpoint_bytes": 7}}, finished(3, 4)


def rows(traces: tuple[Trace, Trace, Trace], *, rtol: float = 0.0) -> dict[str, tuple[str, str]]:
    return {row["component"]: (row["verdict"], row["note"]) for row in compare(*traces, rtol=rtol)}


def test_equal(traces: tuple[Trace, Trace, Trace]) -> None:
    assert rows(traces) == {
        "step counter": ("PASS", "equal"),
        "token counter": ("PASS", "equal"),
        "data position": ("PASS", "equal"),
        "learning rate": ("PASS", "equal"),
        "parameters": ("PASS", "4 parts, bit for bit"),
        "optimizer": ("PASS", "4 parts, bit for bit"),
        "random states": ("PASS", "4 parts, bit for bit"),
        "losses": ("PASS", "2 values, bit for bit"),
        "gradient norms": ("PASS", "2 values, bit for bit"),
        "evaluation": ("PASS", "1 values, bit for bit"),
    }


def test_each_difference_is_named(traces: tuple[Trace, Trace, Trace]) -> None:
    _, _, after = traces
    after["tokens_seen"] = 512
    after["steps"][1] |= {"step": 5, "lr": 0.2, "row_ids": [[9], [5]], "loss": 1.25 + 1e-12, "grad_norm": 2.0}
    after["fingerprints"]["parameters"]["rank 1"]["w"] = "zz"
    after["fingerprints"]["optimizer"]["rank 0"]["new"] = "zz"
    after["eval_loss"] = 2.6
    found = {name: note for name, (verdict, note) in rows(traces).items() if verdict == "FAIL"}
    assert found == {
        "step counter": "[3, 5] instead of [3, 4]",
        "token counter": "512 instead of 1024",
        "data position": "[[[3], [4]], [[9], [5]]] instead of [[[3], [4]], [[4], [5]]]",
        "learning rate": "[0.1, 0.2] instead of [0.1, 0.1]",
        "parameters": "1 of 4 parts differ, first rank 1 w",
        "optimizer": "1 of 4 parts differ, first rank 0 new",
        "losses": "value 2 of 2: 1.250000000001 instead of 1.25",
        "gradient norms": "value 2 of 2: 2.0 instead of 1.0",
        "evaluation": "value 1 of 1: 2.6 instead of 2.5",
    }


def test_a_tolerance_holds_the_losses_and_not_the_bits(traces: tuple[Trace, Trace, Trace]) -> None:
    _, _, after = traces
    after["steps"][1]["loss"] = 1.25 * (1 + 1e-7)
    after["fingerprints"]["parameters"]["rank 1"]["w"] = "zz"
    after["fingerprints"]["random_states"]["rank 1"]["w"] = "zz"
    found = rows(traces, rtol=1e-6)
    assert found["losses"] == ("PASS", "2 values, within 1e-06")
    assert found["parameters"] == (
        "NOT RUN",
        "not bit for bit (1 of 4 parts); the losses are held to restore.rtol=1e-06",
    )
    assert found["random states"] == ("FAIL", "1 of 4 parts differ, first rank 1 w")
    after["steps"][1]["loss"] = 1.25 * (1 + 1e-5)
    assert rows(traces, rtol=1e-6)["losses"][0] == "FAIL"


def test_a_skipped_step_has_an_infinite_norm_in_both(traces: tuple[Trace, Trace, Trace]) -> None:
    reference, _, after = traces
    reference["steps"][2]["grad_norm"] = after["steps"][0]["grad_norm"] = "inf"
    assert rows(traces)["gradient norms"] == ("PASS", "2 values, bit for bit")
    after["steps"][0]["grad_norm"] = 1.0
    assert rows(traces)["gradient norms"] == ("FAIL", "value 1 of 2: 1.0 instead of inf")


def test_without_clipping_there_are_no_norms(traces: tuple[Trace, Trace, Trace]) -> None:
    reference, _, after = traces
    for line in (*reference["steps"], *after["steps"]):
        line["grad_norm"] = None
    assert rows(traces)["gradient norms"] == ("NOT RUN", "there is none")
    reference["steps"][2]["grad_norm"] = 1.0
    assert rows(traces)["gradient norms"] == ("FAIL", "0 values instead of 1")


def outcomes(traces: tuple[Trace, Trace, Trace]) -> dict[str, Outcome]:
    reference, before, after = traces
    after["metrics"] = {"checkpoint_load_seconds": 0.5, "restart_seconds": 3.0}
    names = ("restore_uninterrupted", "restore_before", "restore_after")
    return {name: Outcome("ok", 1.0, result=result) for name, result in zip(names, (reference, before, after))}  # noqa: B905 - three each


def test_the_stage(make_run: Callable[..., Run], workers: Any, traces: tuple[Trace, Trace, Trace]) -> None:
    workers.outcomes = outcomes(traces)
    found = restore.run(make_run("restore"))
    assert workers.calls == [(phase, 2, True) for phase in workers.outcomes]
    assert (found.status, found.problem) == ("ok", None)
    assert found.metrics.values == {
        "num_steps": 3,
        "world_size": 2,
        "checkpoint_load_seconds": 0.5,
        "restart_seconds": 3.0,
        "continued_loss": 1.25,
        "checkpoint_bytes": 7,
        "uninterrupted_loss": 1.25,
        "max_loss_difference": 0.0,
    }
    assert found.artifacts == {"checkpoint": "checkpoints"}


def test_a_mismatch_is_told_by_its_first_component(
    make_run: Callable[..., Run], workers: Any, traces: tuple[Trace, Trace, Trace]
) -> None:
    traces[2]["tokens_seen"] = 512
    traces[2]["steps"][1]["loss"] = 1.5
    workers.outcomes = outcomes(traces)
    found = restore.run(make_run("restore"))
    assert found.status == "mismatch"
    assert found.problem == Failure("token counter did not come back: 512 instead of 1024")
    assert found.metrics.values["max_loss_difference"] == 0.25


def test_one_process_for_a_run_on_one_device(
    make_run: Callable[..., Run], workers: Any, traces: tuple[Trace, Trace, Trace]
) -> None:
    workers.outcomes = outcomes(traces)
    restore.run(make_run("restore", {"parallelism.strategy": "single", "parallelism.nproc_per_node": 1}))
    assert workers.calls == [(phase, 1, False) for phase in workers.outcomes]


def test_a_given_checkpoint_is_only_loaded(
    make_run: Callable[..., Run], workers: Any, traces: tuple[Trace, Trace, Trace]
) -> None:
    workers.outcomes = outcomes(traces)
    found = restore.run(make_run("restore", {"restore.path": "/ckpt"}))
    assert [phase for phase, _, _ in workers.calls] == ["restore_after"]
    assert found.status == "ok"
    assert [(row["component"], row["verdict"]) for row in found.details["comparison"]] == [
        ("checkpoint", "PASS"),
        ("continuation", "NOT RUN"),
    ]


def test_a_phase_that_fails_ends_it(make_run: Callable[..., Run], workers: Any) -> None:
    workers.outcomes["restore_uninterrupted"] = Outcome("failed", 1.0, failure=Failure("rank 1: ValueError: x"))
    found = restore.run(make_run("restore"))
    assert (found.status, found.problem) == ("failed", Failure("rank 1: ValueError: x"))
    assert found.details["comparison"] == [{"component": "restore_uninterrupted", "verdict": "FAIL", "note": "failed"}]
