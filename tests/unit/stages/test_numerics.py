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
