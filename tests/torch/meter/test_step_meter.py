"""The three lines: what they write, who writes it, and that they never stop a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pilotkit.errors import ConfigError, OutputError
from pilotkit.meter import StepMeter


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PILOTKIT_METER_FILE", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def run(meter: StepMeter, device: Any, *, seconds: list[float]) -> dict[str, Any]:
    for value in seconds:
        with meter.step():
            device.launch(value)
    return meter.close()


def test_warmup_is_dropped_and_the_file_says_so(tmp_path: Path, device: Any) -> None:
    path = tmp_path / "new folder" / "meter.json"
    meter = StepMeter(path, tokens_per_step=300, num_warmup_steps=3, synchronize=device.synchronize)
    result = run(meter, device, seconds=[10.0, 10.0, 10.0, 1.0, 1.0, 4.0])
    assert json.loads(path.read_text()) == result
    metrics = result["metrics"]
    assert metrics.pop("peak_rss_bytes") > 0
    assert metrics.pop("step_stddev_seconds") == pytest.approx(3**0.5)
    assert metrics.pop("step_spread") == pytest.approx(3**0.5 / 2)
    assert metrics.pop("step_p95_seconds") == pytest.approx(3.7)
    assert metrics == {
        "num_warmup_steps": 3,
        "num_measured_steps": 3,
        "first_step_seconds": 10.0,
        "warmup_seconds": 30.0,
        "world_size": 1,
        "tokens_per_step": 300,
        "step_seconds": 1.0,
        "step_mean_seconds": 2.0,
        "step_min_seconds": 1.0,
        "step_max_seconds": 4.0,
        "tokens_per_second": 300.0,
        "tokens_per_second_per_device": 300.0,
        "between_steps_seconds": 0.0,
    }
    assert result["schema_version"] == 2
    assert result["step_seconds"] == [10.0, 10.0, 10.0, 1.0, 1.0, 4.0]
    assert result["notes"] == [
        "the step time is unsteady: its spread is 86.6 %, over the limit of 10.0 %",
        "only 3 steps were counted",
    ]
    assert device.num_synchronizations == 12


def test_a_synchronize_that_does_not_wait_is_told(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose work is launched at once: without a wait, only the launches are in the step."""
    monkeypatch.setattr("pilotkit.meter.step_meter.synchronize_current", device.synchronize)
    meter = StepMeter(tokens_per_step=1, num_warmup_steps=1, synchronize=lambda: None)
    for _ in range(7):
        with meter.step():
            device.host_work(0.125)
            device.launch(2.0)
    result = meter.close()
    assert result["metrics"]["step_seconds"] == 0.125
    assert result["notes"] == [
        "the device worked on for 2.00 s (median) after `synchronize` had ended a step: the step times are too short "
        "by that; leave synchronize= away, or give it a function that waits",
    ]
    good = StepMeter(tokens_per_step=1, num_warmup_steps=1, synchronize=device.synchronize)
    assert run(good, device, seconds=[2.0] * 7)["notes"] == []


def test_a_loader_that_sleeps_between_steps_is_told(device: Any) -> None:
    """The three lines around a loop: its batch is there before the step begins."""
    meter = StepMeter(tokens_per_step=1, num_warmup_steps=1, synchronize=device.synchronize)
    for _ in range(7):
        device.host_work(0.25)
        with meter.step():
            device.launch(1.0)
    result = meter.close()
    assert (result["metrics"]["step_seconds"], result["metrics"]["between_steps_seconds"]) == (1.0, 0.25)
    assert result["notes"] == [
        "between two steps pass 250.0 ms (mean), and a step takes 1.00 s: what waits there, the loader perhaps, is in "
        'no figure of a step; take the batch inside step(), as section("data_wait")'
    ]


def test_sections_become_metrics(tmp_path: Path, device: Any) -> None:
    meter = StepMeter(tmp_path / "m.json", tokens_per_step=1, num_warmup_steps=1, synchronize=device.synchronize)
    for wait in (9.0, 1.0, 2.0, 6.0):
        with meter.step():
            with meter.section("data_wait"):
                device.host_work(wait)
            with meter.section("backward"), meter.section("communication"):
                device.host_work(0.5)
            device.host_work(0.25)
    metrics = meter.close()["metrics"]
    assert (metrics["data_wait_seconds"], metrics["data_wait_p50_seconds"]) == (3.0, 2.0)
    assert metrics["data_wait_share"] == pytest.approx(9 / 11.25)
    # A section inside another is part of it: what is left over is counted once.
    assert (metrics["backward_seconds"], metrics["communication_seconds"]) == (0.5, 0.5)
    assert metrics["other_seconds"] == 0.25
    assert metrics["step_mean_seconds"] == 3.0 + 0.5 + 0.25


@pytest.mark.parametrize(
    ("seconds", "num_warmup_steps", "settled"),
    [
        # The last three are compared with the three before them: 1, 1, 1 with 2, 1, 1.
        ([10.0, 8.0, 6.0, 4.0, 2.0] + [1.0] * 15, 10, True),
        ([1.0] * 20, 6, True),
        ([1.0] * 9, 4, True),  # too short for six to leave five: half
        ([20.0 - step for step in range(20)], 10, False),
        ([5.0], 0, True),
    ],
)
def test_warm_up_is_as_long_as_steps_became_faster(
    device: Any, seconds: list[float], num_warmup_steps: int, settled: bool
) -> None:
    result = run(StepMeter(tokens_per_step=1, synchronize=device.synchronize), device, seconds=seconds)
    assert result["metrics"]["num_warmup_steps"] == num_warmup_steps
    assert result["metrics"]["num_measured_steps"] == len(seconds) - num_warmup_steps
    assert result["time"]["settled"] is settled


# torch's own way of setting an option for a while: after pytest's, the option is gone for every later test.
@torch._dynamo.config.patch(automatic_dynamic_shapes=False)  # type: ignore[untyped-decorator]
def test_what_is_compiled_stands_apart() -> None:
    """A shape that is new in a counted step: named, with its guard and its time, as stage `measure` does."""

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    compiled = torch.compile(double, backend="eager", dynamic=False)
    meter = StepMeter(tokens_per_step=1, num_warmup_steps=1)
    for length in (4, 4, 5, 4):
        with meter.step():
            compiled(torch.ones(length))
    result = meter.close()
    assert [found["function"] for found in result["time"]["compilations"]] == ["double"]
    [again] = result["time"]["recompilations"]
    assert again["function"] == "double"
    assert "size" in again["reason"]
    assert result["metrics"]["num_recompilations"] == 1
    assert result["metrics"]["compile_seconds"] > 0


def test_path_from_the_environment(tmp_path: Path, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTKIT_METER_FILE", str(tmp_path / "from env.json"))
    result = run(
        StepMeter(tokens_per_step=1, num_warmup_steps=0, synchronize=device.synchronize), device, seconds=[1.0]
    )
    assert json.loads((tmp_path / "from env.json").read_text()) == result


def test_without_a_path_nothing_is_written(tmp_path: Path, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    meter = StepMeter(tokens_per_step=1, num_warmup_steps=0, synchronize=device.synchronize)
    assert run(meter, device, seconds=[2.0])["metrics"]["step_seconds"] == 2.0
    assert meter.path is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("rank", "written"), [("0", "meter.json"), ("3", "meter-3.json")])
def test_every_rank_writes_a_file_of_its_own(
    tmp_path: Path, device: Any, monkeypatch: pytest.MonkeyPatch, rank: str, written: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "4")
    path = tmp_path / "meter.json"
    meter = StepMeter(path, tokens_per_step=800, num_warmup_steps=0, synchronize=device.synchronize)
    metrics = run(meter, device, seconds=[1.0])["metrics"]
    assert (metrics["tokens_per_second"], metrics["tokens_per_second_per_device"]) == (800.0, 200.0)
    assert [found.name for found in tmp_path.iterdir()] == [written]


def test_too_few_steps_is_a_note_not_an_error(tmp_path: Path, device: Any) -> None:
    meter = StepMeter(tmp_path / "m.json", tokens_per_step=1, num_warmup_steps=3, synchronize=device.synchronize)
    result = run(meter, device, seconds=[1, 1])
    assert result["notes"] == ["no step was counted: 2 were run and num_warmup_steps is 3"]
    assert "step_seconds" not in result["metrics"]
    assert result["metrics"]["num_warmup_steps"] == 2


def test_close_twice_is_the_same_and_ends_the_meter(tmp_path: Path, device: Any) -> None:
    meter = StepMeter(tmp_path / "m.json", tokens_per_step=1, num_warmup_steps=0, synchronize=device.synchronize)
    first = run(meter, device, seconds=[1.0])
    assert meter.close() is first
    with pytest.raises(RuntimeError, match=r"^the meter is closed: no further step can be measured$"):
        meter.step()


def test_a_script_without_any_option(tmp_path: Path) -> None:
    meter = StepMeter(tmp_path / "m.json", tokens_per_step=8, num_warmup_steps=1)
    for _ in range(3):
        with meter.step():
            sum(range(1000))
    metrics = meter.close()["metrics"]
    assert metrics["num_measured_steps"] == 2
    assert 0 < metrics["step_min_seconds"] <= metrics["step_seconds"] <= metrics["step_max_seconds"]


def test_a_file_that_cannot_be_written(tmp_path: Path, device: Any) -> None:
    (tmp_path / "file").write_text("")
    meter = StepMeter(tmp_path / "file" / "m.json", tokens_per_step=1, synchronize=device.synchronize)
    with pytest.raises(OutputError) as raised:
        meter.close()
    assert str(raised.value) == f"{tmp_path}/file/m.json cannot be written: File exists"


def test_numbers_out_of_range() -> None:
    with pytest.raises(ConfigError) as raised:
        StepMeter(tokens_per_step=0, num_warmup_steps=-1)
    assert str(raised.value) == (
        "2 problems in the configuration; nothing was started.\n"
        "1. tokens_per_step=0\n    allowed: 1 or more\n    to mend: give the tokens of one step\n"
        "2. num_warmup_steps=-1\n    allowed: 0 or more\n    to mend: give 0 to count every step"
    )
