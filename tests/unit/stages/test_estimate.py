"""Stage `estimate`: what it makes of the worker's traces, on hardware that is not here. The worker is a stand-in."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from pilotkit.launch.outcome import Outcome
from pilotkit.records.comparisons import Comparison, write_comparison
from pilotkit.report import estimate_tables
from pilotkit.stages import estimate
from pilotkit.stages.run import Run
from pilotkit.units import GIB, MIB

H100: dict[str, Any] = {
    "hardware.name": "h100",
    "hardware.device_type": "cuda",
    "hardware.device_count": 8,
    "hardware.memory_bytes": 80 * GIB,
    "hardware.peak_flops": {"fp32": 1e12},
    "hardware.memory_bandwidth_bytes_per_second": 1e12,
    "hardware.link_bandwidth_bytes_per_second": 1e11,
    "estimate.headroom": 0.0,
    "estimate.context_bytes": GIB,
    "estimate.workspace_bytes": 0,
    "estimate.communication_bytes": GIB,
    "estimate.matmul_efficiency": 0.5,
    "estimate.kernel_seconds": 0.0,
}
OVERHEAD = 2 * GIB


def _work(flops: float = 1e12) -> dict[str, Any]:
    kernel = {"kind": "matmul", "dtype": "float32", "num_flops": flops, "num_bytes": 0, "num_kernels": 1}
    return {"kernels": [kernel], "collectives": []}


def _metrics(reserved: int) -> dict[str, float]:
    return {
        "peak_allocated_bytes": reserved - GIB,
        "native_reserved_bytes": reserved + GIB,
        "expandable_reserved_bytes": reserved,
        "first_step_peak_bytes": reserved - 2 * GIB,
        "steady_step_peak_bytes": reserved - GIB,
    }


def _result(**more: Any) -> dict[str, Any]:
    peak = {"step": "steady step", "peak_bytes": 39 * GIB, "where": "backward", "kinds": {"parameters": 39 * GIB}}
    details = {"peaks": [peak], "memory_profile": [], "attention": [], "notes": []}
    return {"metrics": _metrics(40 * GIB), "details": details, "work": _work(), **more}


def _measured(key: str, *, hardware: str = "h100", seconds: float = 3.0) -> Comparison:
    """A run that took 3 s where 2 were estimated, and held a tenth more than was."""
    return Comparison(
        key=key,
        source=f"pilot {key}",
        measured_at=key,
        hardware=hardware,
        device_type="cuda",
        family="gpt",
        number_format="fp32",
        compiled=False,
        rates={"peak_flops": 1e12, "memory_bandwidth": 1e12, "link_bandwidth": 1e11},
        efficiency={"matmul": 0.5, "attention": 0.25, "elementwise": 0.77, "link": 0.7},
        shape={"strategy": "ddp", "num_devices": 8, "micro_batch_size": 4, "seq_len": 128, "grad_accum_steps": 1},
        work=_work(),
        estimated={"peak_allocated_bytes": 10 * GIB, "peak_reserved_bytes": 20 * GIB, "overhead_bytes": OVERHEAD},
        measured={"step_seconds": seconds, "peak_reserved_bytes": 22 * GIB, "device_used_bytes": 25 * GIB},
    )


def test_an_uncalibrated_estimate_reads_so(make_run: Callable[..., Run], workers: Any) -> None:
    workers.outcomes["estimate"] = Outcome("ok", 1.0, result=_result())
    run = make_run("estimate", H100)
    found = estimate.run(run)
    assert found.status == "ok"
    assert found.metrics.values["device_used_bytes"] == 40 * GIB + OVERHEAD
    assert found.metrics.values["step_seconds"] == pytest.approx(2.0)
    assert found.metrics.values["world_size"] == 8
    assert found.details["calibration"] == found.details["memory_calibration"] == "uncalibrated"
    assert found.details["compared"] == []
    # what the worker searches below: the device less the overhead
    assert json.loads(run.run_dir.asked.read_text())["limit_bytes"] == 78 * GIB


def test_measured_runs_correct_time_memory_overhead_and_the_limit(make_run: Callable[..., Run], workers: Any) -> None:
    workers.outcomes["estimate"] = Outcome("ok", 1.0, result=_result())
    run = make_run("estimate", H100)
    for key in "abc":
        write_comparison(run.output_dir, _measured(key))
    found = estimate.run(run)
    assert found.metrics.values["step_seconds"] == pytest.approx(3.0, rel=0.001)
    assert found.metrics.values["peak_reserved_bytes"] == pytest.approx(44 * GIB, rel=0.001)
    # 3 GiB lay beyond what the allocator held, 2 were assumed
    assert found.metrics.values["overhead_bytes"] == pytest.approx(3 * GIB, rel=0.001)
    assert found.details["calibration"].startswith("calibrated by 3 runs, within ")
    assert json.loads(run.run_dir.asked.read_text())["limit_bytes"] == pytest.approx(77 * GIB / 1.1, rel=0.001)
    assert [row["source"] for row in found.details["compared"]] == ["pilot a", "pilot b", "pilot c"]
    assert run.config.estimate.calibrate
    assert workers.calls == [("estimate", 1, False)]


def test_a_measured_run_that_the_others_contradict_is_named_and_corrects_nothing(
    make_run: Callable[..., Run], workers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.outcomes["estimate"] = Outcome("ok", 1.0, result=_result())
    run = make_run("estimate", H100)
    lines: list[str] = []
    monkeypatch.setattr(run.console, "line", lambda text, **_: lines.append(text))
    for key, seconds in (("a", 3.0), ("b", 3.0), ("c", 3.0), ("d", 4.5)):
        write_comparison(run.output_dir, _measured(key, seconds=seconds))
    found = estimate.run(run)
    assert found.metrics.values["step_seconds"] == pytest.approx(3.0, rel=0.001)
    (warning,) = found.details["warnings"]
    assert warning.startswith("measured run set aside, pilot d (")
    assert "its time is 1.50 times what the other 3 say" in warning
    assert lines.count(f"  {warning}") == 1
    assert [row["is_set_aside"] for row in found.details["compared"]] == [False, False, False, True]


def test_a_run_whose_memory_the_others_contradict_is_marked_so_in_the_table(
    make_run: Callable[..., Run], workers: Any
) -> None:
    """A unit error of a thousand in one memory figure; its time is as good as the others'."""
    workers.outcomes["estimate"] = Outcome("ok", 1.0, result=_result())
    run = make_run("estimate", H100)
    for key in "abc":
        write_comparison(run.output_dir, _measured(key))
    wrong = _measured("d")
    write_comparison(
        run.output_dir,
        dataclasses.replace(wrong, measured={"step_seconds": 3.0, "peak_reserved_bytes": 22 * GIB / 1000}),
    )
    found = estimate.run(run)
    (warning,) = found.details["warnings"]
    assert warning.startswith("measured run set aside, pilot d (")
    assert "its memory is 0.00 times" not in warning
    assert "its memory is 0.001 times what the other 3 say" in warning
    _, rows = estimate_tables.comparison_rows(found.details["compared"])
    assert ["set aside" in row[7] for row in rows] == [False, False, False, True]
    assert all("set aside" not in row[6] for row in rows)


def test_hardware_is_compared_at_its_fewest_devices_and_price(make_run: Callable[..., Run], workers: Any) -> None:
    by_devices = [
        {
            "num_devices": count,
            "strategy": "fsdp" if count > 1 else "single",
            "grad_accum_steps": 1,
            "metrics": _metrics(160 * GIB // count),
            "work": _work(1e15),
        }
        for count in (1, 2, 4, 8)
    ]
    workers.outcomes["estimate"] = Outcome("ok", 1.0, result=_result(by_devices=by_devices))
    values = {
        **H100,
        "estimate.max_devices": 8,
        "estimate.compare_hardware": ["a100", "h100", "h200"],
        "prices.per_gpu_hour": {"a100": 1.0, "h100": 3.0, "h200": None},
    }
    details = estimate.run(make_run("estimate", values)).details
    assert [(row["num_devices"], row["fits"]) for row in details["by_devices"]] == [
        (1, False), (2, False), (4, True), (8, True),
    ]  # fmt: skip
    options = {option["hardware"]: option for option in details["hardware"]["options"]}
    assert {name: option["num_devices"] for name, option in options.items()} == {"a100": 4, "h100": 4, "h200": 2}
    assert options["a100"]["price_per_hour"] == 4.0
    assert options["h200"]["price_per_hour"] is None
    # The A100 of the option file does 19.5e12 FLOP/s against the 1e12 that this run says of its own h100.
    assert details["hardware"]["cheapest"] == "a100"
    assert details["hardware"]["how"] == "by price per token"


def test_a_grid_is_judged_and_written_as_a_table(make_run: Callable[..., Run], workers: Any) -> None:
    points = [
        {
            "micro_batch_size": size,
            "seq_len": 64,
            "peak_allocated_bytes": size * GIB,
            "peak_reserved_bytes": size * GIB + MIB,
        }
        for size in (1, 90)
    ]
    workers.outcomes["estimate"] = Outcome("ok", 1.0, result=_result(grid={"points": points, "how": "fitted"}))
    run = make_run("estimate", H100)
    found = estimate.run(run)
    assert found.details["grid"]["largest_micro_batch"] == {"64": 1}
    assert found.artifacts == {"grid": "estimate.csv"}
    rows = list(csv.DictReader(run.run_dir.estimate_csv.read_text().splitlines()))
    assert [(row["micro_batch_size"], row["fits"]) for row in rows] == [("1", "True"), ("90", "False")]


def test_a_counted_estimate_is_corrected_by_nothing(make_run: Callable[..., Run], workers: Any) -> None:
    result = _result()
    result["details"]["method"] = "analytic"
    workers.outcomes["estimate"] = Outcome("ok", 1.0, result=result)
    run = make_run("estimate", H100)
    write_comparison(run.output_dir, _measured("a"))
    found = estimate.run(run)
    assert found.details["calibration"] == "analytic, uncalibrated"
    assert found.metrics.values["step_seconds"] == pytest.approx(2.0)


def test_a_network_is_entered_through_all_devices_of_a_node(make_run: Callable[..., Run], workers: Any) -> None:
    work = {"kernels": [], "collectives": [{"name": "allgather", "num_ranks": 16, "num_bytes": 16e9, "num_calls": 1}]}
    workers.outcomes["estimate"] = Outcome("ok", 1.0, result=_result(work=work))
    values = {
        **H100,
        "parallelism.num_nodes": 2,
        "hardware.efficiencies": {"link": 0.5},
        "estimate.network_bytes_per_second": 1e9,
    }
    parts = estimate.run(make_run("estimate", values)).details["step_parts"]
    # 15 of 16 parts of 16 GB over eight times 1 GB/s, half of which is reached
    assert parts["communication"] == pytest.approx(15e9 / (8e9 * 0.5))
