"""Faults planted in a model, and what the phases say of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pilotkit.errors import ConfigError
from pilotkit.records.run_dir import RunDir
from pilotkit.worker.phases import measure, run_phase

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


def test_a_little_of_every_batch_is_much_of_a_whole_evaluation(make_run_dir: MakeRunDir) -> None:
    """Case R47: what is kept of a batch is below 1 % of the peak, and an evaluation has many."""
    values = {"model.kwargs": {"fault": "keep logits", "width": 4096}, "measure.checkpoint_peak": False}
    few = _result(make_run_dir({**values, "train.num_eval_batches": 2}, phase="measure"), "measure")
    many = _result(make_run_dir({**values, "train.num_eval_batches": 1000}, phase="measure"), "measure")
    assert 0 < few["metrics"]["eval_growth_bytes"] < 0.005 * few["metrics"]["evaluation_peak_bytes"]
    assert (few["memory"]["eval_grows"], many["memory"]["eval_grows"]) == (False, True)


def test_what_is_taken_after_evaluation_is_read_too(make_run_dir: MakeRunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases R38 and R47 on an accelerator, by readings of a made-up one: steps end at 34, an evaluation takes 50."""
    readings = iter([34.0, 50.0])
    steps = {"peak_allocated_bytes": 30.0, "peak_reserved_bytes": 32.0, "device_used_bytes": 39.0}
    monkeypatch.setattr(measure, "device_memory_metrics", lambda _: {**steps, "device_own_bytes": next(readings)})
    metrics = _result(make_run_dir(phase="measure"), "measure")["metrics"]
    assert (metrics["device_own_bytes"], metrics["largest_own_bytes"]) == (34.0, 50.0)


@pytest.mark.parametrize(("fault", "skipped"), [("", 0), ("overflow", 3)])
def test_counted_steps_that_the_scaler_skipped(fault: str, skipped: int, make_run_dir: MakeRunDir) -> None:
    """Case R55."""
    values = {"precision.compute_dtype": "float16", "precision.grad_scaler": True, "model.kwargs": {"fault": fault}}
    for phase in ("measure", "pilot_single"):
        assert _result(make_run_dir(values, phase=phase), phase)["metrics"]["num_skipped_steps"] == skipped
    assert "num_skipped_steps" not in _result(make_run_dir(phase="measure"), "measure")["metrics"]


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
