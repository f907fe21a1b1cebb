"""What counts as a measurement of the estimated model: records of any shape, rows of a table, and a history."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from pilotkit.decide.compared import compare, pool_of, run_of
from pilotkit.decide.measured import Measurement, family_of, measurements_of
from pilotkit.decide.measured_table import BadTable, read_table
from pilotkit.decide.step_time import Efficiency, Rates
from pilotkit.records.comparisons import Comparison, read_comparisons, write_comparison
from pilotkit.records.record import Record

CONFIG: dict[str, Any] = {
    "hardware": {
        "name": "h100",
        "device_type": "cuda",
        "device_count": 8,
        "peak_flops": {"bf16": 1e15},
        "memory_bandwidth_bytes_per_second": 3e12,
        "link_bandwidth_bytes_per_second": 4e11,
    },
    "parallelism": {"strategy": "fsdp", "num_nodes": 1},
    "precision": {"name": "bf16_mixed"},
    "model": {"factory": "pilotkit.train.models.llama:build", "kwargs": {"hidden_size": 8}},
    "data": {"factory": "d"},
    "optimizer": {"name": "adamw"},
    "activation_checkpointing": {"mode": "none"},
    "train": {"micro_batch_size": 2, "seq_len": 64, "global_batch_size": 32, "max_grad_norm": 1.0},
}
PILOT = {"world_size": 8.0, "fsdp_step_seconds": 2.0, "fsdp_step_spread": 0.2, "fsdp_num_measured_steps": 16.0}
DEFAULTS = {"strategy": "fsdp", "num_devices": 8, "micro_batch_size": 2, "seq_len": 64, "grad_accum_steps": 1}


def _record(stage: str, metrics: dict[str, float], *, started: str = "2026-01-02", **changed: Any) -> Record:
    config = copy.deepcopy(CONFIG)
    for key, value in changed.items():
        section, _, name = key.partition("__")
        config[section][name] = value
    return Record(f"{stage}-id", stage, "ok", started, config=config, config_digest="same", metrics=metrics)


def test_measure_is_one_device_and_pilot_all_whatever_the_run_intends() -> None:
    records = [
        _record("measure", {"step_seconds": 1.0, "peak_allocated_bytes": 5.0}, train__seq_len=128),
        _record("pilot", {**PILOT, "fsdp_peak_reserved_bytes": 7.0, "single_step_seconds": 9.0}),
    ]
    one, all_devices = measurements_of(records, like=CONFIG)
    assert one.shape == {
        "strategy": "single",
        "num_devices": 1,
        "micro_batch_size": 2,
        "seq_len": 128,
        "grad_accum_steps": 2,
    }
    assert one.figures == {"step_seconds": 1.0, "peak_allocated_bytes": 5.0}
    assert (all_devices.shape["strategy"], all_devices.shape["num_devices"]) == ("fsdp", 8)
    assert all_devices.figures == {"step_seconds": 2.0, "peak_reserved_bytes": 7.0}
    # the standard error of sixteen steps
    assert all_devices.spread == pytest.approx(0.05)


def test_a_pilot_of_hsdp_says_what_its_mesh_was() -> None:
    record = _record("pilot", {"world_size": 8.0, "hsdp_step_seconds": 2.0})
    record.details["strategies"] = {"hsdp": {"mesh": {"dp_replicate": 4, "dp_shard": 2}}}
    (found,) = measurements_of([record], like=CONFIG)
    assert (found.shape["strategy"], found.shape["num_devices"], found.shape["dp_shard"]) == ("hsdp", 8, 2)
    assert found.asked()["dp_shard"] == 2, "the worker traces that mesh, not the run's own"


@pytest.mark.parametrize(
    "changed",
    [
        {"hardware__name": "a100"},
        {"precision__name": "fp32"},
        {"optimizer__name": "sgd"},
        {"activation_checkpointing__mode": "full"},
        {"model__kwargs": {"hidden_size": 16}},
        {"train__compile": True},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_another_model_or_hardware_is_not_this_one(changed: dict[str, Any]) -> None:
    assert measurements_of([_record("measure", {"step_seconds": 1.0}, **changed)], like=CONFIG) == []


def _read(text: str) -> list[Measurement]:
    return read_table(text, name="mine.csv", defaults=DEFAULTS, model={"name": "m"})


def test_rows_of_a_table_take_what_they_leave_out_from_the_configuration() -> None:
    text = "micro_batch_size,seq_len,strategy,tokens_per_second,peak_reserved_bytes\n4,128,,4096,\n1,64,single,64,1e9\n"
    first, second = _read(text)
    assert first.shape == {**DEFAULTS, "micro_batch_size": 4, "seq_len": 128}
    # 4 rows of 128 tokens on 8 devices
    assert first.figures == {"step_seconds": 1.0}
    assert second.shape["num_devices"] == 1
    assert second.figures == {"step_seconds": 1.0, "peak_reserved_bytes": 1e9}
    assert _read(text)[0].key == first.key != second.key


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("micro_batch,step_seconds\n1,2\n", "unknown column micro_batch"),
        ("seq_len,step_seconds\n", "there is no row below the header"),
        ("seq_len,step_seconds\n64,\n", "row 1: nothing was measured"),
        ("seq_len,step_seconds\n64,1\n6.5,1\n", "row 2: seq_len=6.5 is not a whole number above 0"),
        ("seq_len,step_seconds\n64,-1\n", "row 1: step_seconds=-1 is not a number above 0"),
        ("strategy,step_seconds\ntp,1\n", "row 1: strategy tp is none of single, ddp, fsdp"),
        ("strategy,num_devices,step_seconds\nfsdp,1,1\n", "row 1: fsdp on 1 devices"),
    ],
    ids=["empty", "column", "no row", "no figure", "not whole", "negative", "strategy", "one rank"],
)
def test_a_table_that_cannot_be_read_says_where(text: str, words: str) -> None:
    with pytest.raises(BadTable) as caught:
        _read(text)
    assert words in str(caught.value)


def _comparison(**changed: Any) -> Comparison:
    traced = {
        "metrics": {
            "steady_step_peak_bytes": 100,
            "first_step_peak_bytes": 90,
            "native_reserved_bytes": 130,
            "expandable_reserved_bytes": 110,
        },
        "work": {
            "kernels": [{"kind": "matmul", "dtype": "b", "num_flops": 1e15, "num_bytes": 0, "num_kernels": 1}],
            "collectives": [],
        },
    }
    figures = {
        "step_seconds": 4.0,
        "peak_allocated_bytes": 98.0,
        "peak_reserved_bytes": 121.0,
        "device_used_bytes": 140.0,
    }
    measurement = Measurement("key", "pilot 1", "2026-01-02", DEFAULTS, figures, config_digest="same")
    values: dict[str, Any] = {
        "hardware": CONFIG["hardware"],
        "family": "llama",
        "number_format": "bf16",
        "compiled": False,
        "allocator": "expandable",
        "overhead_bytes": 10,
        "efficiency": Efficiency(matmul=0.5, attention=0.5, elementwise=0.5, link=0.5),
        "earlier": [],
        **changed,
    }
    return compare(measurement, traced, **values)


def test_a_comparison_is_kept_and_read_back(tmp_path: Path) -> None:
    told = _record("estimate", {"step_seconds": 3.0}, started="2026-01-01")
    too_late = _record("estimate", {"step_seconds": 5.0}, started="2026-01-03")
    found = _comparison(earlier=[told, too_late])
    assert found.told == {"run_id": "estimate-id", "calibration": "", "step_seconds": 3.0}
    write_comparison(tmp_path, found)
    assert (tmp_path / "calibration" / "h100" / "llama" / "key.json").is_file()
    (tmp_path / "calibration" / "h100" / "llama" / "cut.json").write_text("{", encoding="utf-8")
    kept, unreadable = read_comparisons(tmp_path)
    assert kept == [found]
    assert len(unreadable) == 1
    assert "cut.json" in unreadable[0]


def test_what_a_comparison_tells_a_correction() -> None:
    efficiency = Efficiency(matmul=0.5, attention=0.5, elementwise=0.5, link=0.5)
    run = run_of(_comparison(), rates=Rates(1e15, 1e12, 1e12), efficiency=efficiency, family="gpt")
    assert run.time is not None
    assert run.time.step_seconds == pytest.approx(2.0)
    assert (run.allocated, run.reserved, run.overhead) == ((100, 98.0), (110, 121.0), (10, 19.0))
    assert not run.is_family


def test_the_processor_s_meter_sees_a_late_step_alone() -> None:
    hardware = {**CONFIG["hardware"], "device_type": "cpu"}
    found = _comparison(hardware=hardware)
    assert found.estimated["peak_allocated_bytes"] == 100
    assert _comparison().estimated["peak_allocated_bytes"] == 100


def test_another_accelerator_stands_in_and_a_processor_never() -> None:
    here, there = _comparison(), _comparison(hardware={**CONFIG["hardware"], "name": "cpu", "device_type": "cpu"})
    options: dict[str, Any] = {"number_format": "bf16", "compiled": False}
    pool = pool_of([here, there], hardware="h200", device_type="cuda", **options)
    assert (pool.comparisons, pool.carried_from) == ([here], "h100")
    assert pool_of([here, there], hardware="h100", device_type="cuda", **options).carried_from == ""
    assert pool_of([here], hardware="cpu", device_type="cpu", **options).comparisons == []
    assert pool_of([here], hardware="h100", device_type="cuda", number_format="fp8", compiled=False).comparisons == []


def test_families() -> None:
    assert family_of(CONFIG) == "llama"
    hub = {"model": {"factory": "pilotkit.train.models.huggingface:build", "name": "org/Model-8B"}}
    assert family_of(hub) == "Model-8B"
