"""Faults planted in a model, and what the phases say of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pilotkit.errors import ConfigError
from pilotkit.records.run_dir import RunDir
from pilotkit.worker.phases import run_phase

MakeRunDir = Callable[..., RunDir]
BF16_MIXED = {"precision.name": "bf16_mixed", "precision.compute_dtype": "bfloat16", "precision.flops_format": "bf16"}


def _result(run_dir: RunDir, phase: str) -> dict[str, Any]:
    run_phase(run_dir, phase=phase, rank=0)
    result = run_dir.phase(phase).read_result()
    assert result is not None
    return result


@pytest.mark.parametrize("fault", ["", "keep logits"])
def test_an_evaluation_that_keeps_its_results_grows(fault: str, make_run_dir: MakeRunDir) -> None:
    """Case R47."""
    found = _result(make_run_dir({"model.kwargs": {"fault": fault}}, phase="measure"), "measure")
    metrics, memory = found["metrics"], found["memory"]
    logits = 2 * 32 * 256 * 4
    assert metrics["eval_growth_bytes"] == (logits if fault else 0)
    assert memory["eval_grows"] == bool(fault)
    assert metrics["largest_peak_bytes"] == max(
        metrics[f"{phase}_bytes"]
        for phase in ("first_step_peak", "peak_allocated", "evaluation_peak", "checkpoint_save_peak")
    )


@pytest.mark.parametrize(("fault", "leaks"), [("", []), ("leave autocast", ["head"])])
def test_a_module_that_leaves_the_precision_is_named(fault: str, leaks: list[str], make_run_dir: MakeRunDir) -> None:
    values = {**BF16_MIXED, "model.kwargs": {"fault": fault}, "numerics.num_steps": 2, "numerics.num_noise_seeds": 1}
    _result(make_run_dir(values, phase="numerics_reference"), "numerics_reference")
    assert _result(make_run_dir(values, phase="numerics_candidate"), "numerics_candidate")["leaks"] == leaks


def test_a_product_in_double_is_named_where_the_run_is_in_fp32(make_run_dir: MakeRunDir) -> None:
    values = {"model.kwargs": {"fault": "in double"}, "numerics.num_steps": 2}
    found = _result(make_run_dir(values, phase="numerics_reference"), "numerics_reference")
    assert found["leaks"] == ["Mine"]
    assert found["reference"]["dtypes"]["modules"]["float64"] == ["Mine"]


def test_a_layer_that_is_handed_another_dtype_is_named(make_run_dir: MakeRunDir) -> None:
    with pytest.raises(ConfigError) as caught:
        _result(make_run_dir({"model.kwargs": {"fault": "to double"}}, phase="measure"), "measure")
    (problem,) = caught.value.problems
    assert (problem.key, problem.allowed) == ("model.factory", "float32 throughout")
    assert problem.fix.startswith("head met two dtypes (")


@pytest.mark.parametrize(
    ("fault", "missed"),
    [("", []), ("cut", ["embed.weight"]), ("in double", ["head.bias"])],
)
def test_a_parameter_that_no_gradient_reaches_is_counted(
    fault: str, missed: list[str], make_run_dir: MakeRunDir
) -> None:
    """Whole numbers on the way let no gradient through; a bias is left out of a product by hand."""
    found = _result(make_run_dir({"model.kwargs": {"fault": fault}}, phase="measure"), "measure")["unreached"]
    assert found["parameters"] == dict.fromkeys(missed, found["num_steps"])
