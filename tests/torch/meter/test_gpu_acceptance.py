"""A rehearsal of the script for accelerators: checks that a processor can do give PASS, and can give FAIL."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = str(Path(__file__).resolve().parents[3] / "benchmarks")
CHECKS = (
    "kinds_in_closed_form",
    "gradients_in_closed_form",
    "fp32_is_not_tf32",
    "dtypes_and_updates",
    "first_nan",
    "recomputation_is_executed_and_not_needed",
)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The script with the processor in place of the device, and small shapes."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import gpu_acceptance

    monkeypatch.setattr(gpu_acceptance, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_acceptance, "WIDTH", 64)
    monkeypatch.setattr(gpu_acceptance, "ROWS", 1024)
    backends: Any = torch.backends
    yield gpu_acceptance
    if hasattr(backends, "fp32_precision"):
        backends.fp32_precision = backends.cudnn.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
    for name in ("gpu_acceptance", "machine"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_holds_on_the_processor(script: Any, name: str) -> None:
    held, text = getattr(script, name)()
    assert held, text


def test_tf32_that_a_run_leaves_on_is_seen(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a device with TF32: products keep 10 bits wherever the switches that a run left are on."""
    monkeypatch.setattr(script, "_has_tf32", lambda: True)
    backends: Any = torch.backends

    def rounds() -> tuple[float, float]:
        return tuple(  # type: ignore[return-value]  # two of them
            1024.0 if switch.allow_tf32 else 1024.5 for switch in (backends.cuda.matmul, backends.cudnn)
        )

    monkeypatch.setattr(script, "_of_one_bit_more", rounds)
    assert script.fp32_is_not_tf32()[0]
    monkeypatch.setattr(script.PrecisionPolicy, "apply_to_backend", lambda *_: None)
    monkeypatch.setattr(script, "HOSTILE", (script._set_older,))
    assert not script.fp32_is_not_tf32()[0]


def test_a_nan_that_nobody_sees_fails(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script.FiniteWatch, "_look", lambda *_: None)
    assert not script.first_nan()[0]
