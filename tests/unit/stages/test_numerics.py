"""Stage `numerics`: what was found is told, whatever fails afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pilotkit.launch.outcome import Outcome
from pilotkit.records.record import Failure
from pilotkit.stages import numerics
from pilotkit.stages.run import Run


def test_reasons_are_told_when_recomputation_fails(
    make_run: Callable[..., Run], workers: Any, said: Callable[[Run], list[str]]
) -> None:
    """A model with a NaN ends its training by it; the reasons before name the module."""
    workers.outcomes = {
        "numerics_reference": Outcome("does_not_fit", 1.0),
        "numerics_none": Outcome("failed", 1.0, failure=Failure("rank 0: step 1: the loss is nan", rank=0)),
    }
    run = make_run("numerics", {"numerics.modes": ["none", "full"]})
    found = numerics.run(run)
    assert found.status == "failed"
    name = run.config.precision.name
    assert f"  {name}: undecided" in said(run)
    assert any("the fp32 reference does not fit on one device" in line for line in said(run))
    assert found.details["recomputation"] == []


def test_an_fp32_run_that_ends_in_a_nan_is_rejected_and_its_products_are_named(
    make_run: Callable[..., Run], workers: Any, said: Callable[[Run], list[str]]
) -> None:
    """There is no candidate to hold against it, and yet it is no run to make."""
    event = {"step": 3, "module": "mid", "where": "output", "kind": "nan"}
    modules = {"float32": ["head"], "float64": ["mid"]}
    curve = {"ended": "step 3: the loss is nan", "events": [event], "eval_loss": None, "dtypes": {"modules": modules}}
    result = {
        "reference": curve, "leaks": ["mid"], "noise": [], "repeatable": True, "switches": {}, "deterministic": True
    }  # fmt: skip
    workers.outcomes = {"numerics_reference": Outcome("ok", 1.0, result=result)}
    run = make_run("numerics", {"precision.name": "fp32", "numerics.modes": [], "train.compile": True})
    found = numerics.run(run)
    assert found.details["precision"]["verdict"] == "reject"
    assert found.details["warnings"] == [
        numerics.UNCOMPILED,
        "matrix products in another dtype than float32: mid (float64); look there for float(), double(), "
        "autocast(enabled=False), or a constant of that dtype",
    ]
    assert said(run)[-1] == (
        "  fp32 ended without a finite loss: step 3: the loss is nan (step 3: nan in the output of mid)."
    )
