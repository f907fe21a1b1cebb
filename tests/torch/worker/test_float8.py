"""`precision=fp8` in the worker: refused by name on a device that lacks it, and judged by `numerics` when emulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pilotkit.device.accelerator import float8_problem_of
from pilotkit.errors import ConfigError
from pilotkit.estimate.problems import EstimateError
from pilotkit.records.run_dir import RunDir
from pilotkit.worker.phases import run_phase

FP8 = {
    "precision.name": "fp8",
    "precision.param_dtype": "float32",
    "precision.compute_dtype": "bfloat16",
    "precision.float8": "tensorwise",
    "hardware.precisions": ["fp32", "fp8"],
}
DECODER = {
    "model.factory": "pilotkit.train.models.gpt:build",
    "model.kwargs": {
        "vocab_size": 256, "num_layers": 2, "num_heads": 2, "hidden_size": 32, "max_seq_len": 32, "dropout": 0.0,
        "tie_embeddings": True,
    },
}  # fmt: skip


def test_the_processor_has_none(make_run_dir: Callable[..., RunDir]) -> None:
    run_dir = make_run_dir({**FP8, **DECODER}, phase="measure")
    with pytest.raises(ConfigError) as caught:
        run_phase(run_dir, phase="measure", rank=0)
    assert caught.value.problems[0].key == "precision"
    assert caught.value.problems[0].value == "fp8"
    assert caught.value.problems[0].fix.endswith(": a processor has no float8 matrix products")


def test_the_estimate_does_not_pass_bf16_off_as_fp8(make_run_dir: Callable[..., RunDir]) -> None:
    run_dir = make_run_dir({**FP8, **DECODER}, phase="estimate")
    with pytest.raises(EstimateError, match="float8 layers are not traced"):
        run_phase(run_dir, phase="estimate", rank=0)


@pytest.mark.parametrize(
    ("capability", "arch", "problem"),
    [
        ((8, 9), "", ""),
        ((9, 0), "", ""),
        ((8, 0), "", "compute capability 8.0 has no float8 matrix products, 8.9 and above have"),
        ((9, 4), "gfx942", ""),
        ((9, 0), "gfx90a", "gfx90a has no float8 matrix products, gfx942, gfx950, gfx1200, gfx1201 have"),
    ],
)
def test_which_devices_have_it(capability: tuple[int, int], arch: str, problem: str) -> None:
    assert float8_problem_of(capability=capability, arch=arch) == problem


def test_numerics_compares_it_with_fp32(make_run_dir: Callable[..., RunDir]) -> None:
    values: dict[str, Any] = {
        **FP8, **DECODER, "stage": "numerics", "precision.float8_emulate": True,
        "numerics.num_steps": 4, "numerics.num_noise_seeds": 1,
    }  # fmt: skip
    for phase in ("numerics_reference", "numerics_candidate"):
        run_dir = make_run_dir(values, phase=phase)
        run_phase(run_dir, phase=phase, rank=0)
    reference = run_dir.phase("numerics_reference").read_result()
    found = run_dir.phase("numerics_candidate").read_result()
    assert reference is not None
    assert found is not None
    assert found["leaks"] == []
    losses, expected = found["candidate"]["losses"], reference["reference"]["losses"]
    assert losses != expected
    assert losses == pytest.approx(expected, rel=0.01)
    deviations = found["candidate"]["grad_deviation"]
    # Three bits of mantissa: percents, where bfloat16 has tenths of them; the norm and the head are not converted.
    assert 0.01 < deviations["blocks.0"] < 0.3
