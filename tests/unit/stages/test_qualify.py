"""Stage `qualify`: what the worker found, put together to one verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pilotkit.launch.devices import Devices
from pilotkit.launch.outcome import Outcome
from pilotkit.stages import qualify
from pilotkit.stages.run import Run

MakeRun = Callable[..., Run]
# As torch reports them for 2.9 with ROCm 6.4 on a card that came later (recorded form).
STACK = {
    "torch": "2.9.1+rocm6.4", "cuda": None, "hip": "6.4.4", "cudnn": None, "collectives": "2.22.3",
    "arch": "gfx950", "built_for": ["gfx90a", "gfx942"],
}  # fmt: skip
NOTHING = {"metrics": {}, "rows": [], "extensions": {}, "operators": [], "not_deterministic": []}


def test_a_build_without_kernels_for_the_device_is_said_and_nothing_else_is_tried(
    make_run: MakeRun, workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.outcomes = {"qualify": Outcome("ok", 1.0, result={**NOTHING, "stack": STACK, "device": "MI355X"})}
    run = make_run("qualify", {"hardware.device_type": "rocm"})
    monkeypatch.setattr(type(run), "devices", lambda self: Devices(8))
    found = qualify.run(run)
    assert found.status == "mismatch"
    assert found.problem is not None
    assert found.problem.summary == (
        "not qualified: build torch 2.9.1+rocm6.4: has no kernels for gfx950 (built for gfx90a, gfx942); "
        "install a torch that is built for this device"
    )
    assert [row["check"] for row in found.details["card"]] == ["build"]


def test_a_kernel_without_a_fixed_order_stands_beside_the_verdict(
    make_run: MakeRun, workers: Any, said: Callable[[Run], list[str]]
) -> None:
    stack = {**STACK, "torch": "2.9.1+cpu", "hip": None, "collectives": None, "arch": None, "built_for": []}
    result = {
        **NOTHING, "stack": stack, "device": "cpu", "not_deterministic": ["put_"],
        "metrics": {"matmul_flops_per_second": 1e9, "copy_bytes_per_second": 1e9},
        "rows": [{"check": "operator", "subject": "aten::mm float32", "verdict": "PASS", "note": ""}],
    }  # fmt: skip
    workers.outcomes = {"qualify": Outcome("ok", 1.0, result=result)}
    run = make_run("qualify", {"parallelism.strategy": "single"})
    found = qualify.run(run)
    assert (found.status, found.details["verdict"]) == ("ok", "qualified")
    assert "  note: not reproducible: put_ has no deterministic kernel here" in said(run)
