"""Each phase on one rank, as a worker runs it: what it leaves for the driver, and what a rank that fails leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pilotkit.records.run_dir import RunDir
from pilotkit.train.fingerprint import digest
from pilotkit.worker import __main__ as entry
from pilotkit.worker import phases
from pilotkit.worker.phases import PHASES, run_phase
from pilotkit.worker.phases.restore import _plain
from pilotkit.worker.steps import run_timed_steps

MakeRunDir = Callable[..., RunDir]
NUM_PARAMS = 256 * 8 + 8 * 256 + 256


def result_of(run_dir: RunDir, phase: str) -> dict[str, Any]:
    run_phase(run_dir, phase=phase, rank=0)
    result = run_dir.phase(phase).read_result()
    assert result is not None
    return result


def progress_of(run_dir: RunDir, phase: str) -> list[tuple[int, int]]:
    lines = run_dir.phase(phase).progress.read_text(encoding="utf-8").splitlines()
    return [(json.loads(line)["done"], json.loads(line)["total"]) for line in lines]


def test_prove_and_its_second_process(make_run_dir: MakeRunDir) -> None:
    run_dir = make_run_dir(phase="prove")
    saved = result_of(run_dir, "prove")["metrics"]
    # The model, two steps, the evaluation, the save: the driver tells by it where a killed rank was.
    assert progress_of(run_dir, "prove") == [(number, 5) for number in range(1, 6)]
    assert (saved["num_params"], saved["num_steps"]) == (NUM_PARAMS, 2)
    assert saved["batch_bytes"] == 2 * 32 * 2 * 8, "two rows of 32 ids and labels, int64"
    assert saved["checkpoint_bytes"] > 3 * 4 * NUM_PARAMS, "weights and two moments"
    assert all(saved[name] > 0 for name in saved if name.endswith("_seconds"))
    make_run_dir(phase="prove_restore")
    restored = result_of(run_dir, "prove_restore")["metrics"]
    assert progress_of(run_dir, "prove_restore") == [(1, 3), (2, 3), (3, 3)]
    assert restored["restored_eval_loss"] == saved["eval_loss"], "bit for bit"
    assert restored["restored_step"] == 2


def test_measure(make_run_dir: MakeRunDir) -> None:
    run_dir = make_run_dir({"train.grad_accum_steps": 3, "hardware.peak_flops": {"fp32": 1e9}}, phase="measure")
    found = result_of(run_dir, "measure")
    metrics = found["metrics"]
    total = metrics["num_warmup_steps"] + 3
    assert progress_of(run_dir, "measure")[-1] == (total, total)
    assert len(found["steps"]) == metrics["num_measured_steps"] == 3
    assert metrics["step_seconds"] == sorted(found["steps"])[1], "the median of three"
    assert metrics["tokens_per_step"] == 2 * 32 * 3
    assert metrics["tokens_per_second"] == pytest.approx(2 * 32 * 3 / metrics["step_seconds"])
    # The matrix product of the head alone: 2 x 8 x 256 forward, twice that backward.
    assert metrics["num_flops_per_token"] == 3 * 2 * 8 * 256
    flops_per_second = metrics["tokens_per_second"] * metrics["num_flops_per_token"]
    assert metrics["mfu"] == pytest.approx(flops_per_second / 1e9)
    assert metrics["hfu"] == metrics["mfu"], "nothing is recomputed"
    assert (metrics["full_rows_share"], metrics["mean_row_tokens"]) == (1.0, 32.0)
    # Weights, gradients and two moments at the least.
    assert metrics["peak_allocated_bytes"] > 4 * 4 * NUM_PARAMS
    assert metrics["peak_rss_bytes"] > metrics["peak_allocated_bytes"]


def test_frozen_weights_take_less_work(make_run_dir: MakeRunDir) -> None:
    overrides = {
        "model.kwargs": {"fault": "frozen head"}, "hardware.peak_flops": {"fp32": 1e9}, "train.grad_accum_steps": 2,
        "measure.checkpoint_peak": False,
    }  # fmt: skip
    metrics = result_of(make_run_dir(overrides, phase="measure"), "measure")["metrics"]
    # Forward and the gradient of the input; the head's weight has none of its own.
    assert metrics["num_flops_per_token"] == metrics["num_executed_flops_per_token"] == 2 * 2 * 8 * 256
    assert metrics["mfu"] == metrics["hfu"]


def test_no_mfu_without_a_peak(make_run_dir: MakeRunDir) -> None:
    run_dir = make_run_dir({"hardware.peak_flops": {"bf16": 1e9}}, phase="measure")
    assert "mfu" not in result_of(run_dir, "measure")["metrics"]


def test_pilot_on_one_device(make_run_dir: MakeRunDir) -> None:
    found = result_of(make_run_dir(phase="pilot_single"), "pilot_single")
    assert found["mesh"] == {"dp_replicate": 1, "dp_shard": 1}
    assert (len(found["devices"]), found["ranks"]) == (1, [0])
    assert found["metrics"]["tokens_per_second"] == found["metrics"]["tokens_per_second_per_device"]
    assert found["metrics"]["start_seconds"] > 0


def test_a_run_that_stopped_equals_one_that_did_not(make_run_dir: MakeRunDir) -> None:
    found = {}
    for phase in ("restore_uninterrupted", "restore_before", "restore_after"):
        found[phase] = result_of(make_run_dir(phase=phase), phase)
    whole, before, after = found.values()
    assert [step["step"] for step in whole["steps"]] == [1, 2, 3, 4, 5, 6]
    assert before["steps"] == whole["steps"][:3]
    assert after["steps"] == whole["steps"][3:]
    assert after["seam"] == before["seam"] == whole["seam"], "what was loaded is what was saved"
    assert after["end"] == whole["end"]
    assert after["next_batches"] == before["next_batches"]
    assert set(whole["end"]["parameters"]) == {"rank 0"}
    assert set(whole["end"]["parameters"]["rank 0"]) == {"embed.weight", "head.weight", "head.bias"}
    assert after["eval_loss"] == whole["eval_loss"]
    assert after["restored_step"] == 3


def test_a_fingerprint_tells_bits_dtype_and_shape() -> None:
    ones = torch.ones(2, 3)
    different = [ones, ones.double(), ones.reshape(3, 2), ones + 1e-7, torch.ones(0), torch.tensor(1.0), 1.0, "1.0"]
    assert len({digest(value) for value in different}) == len(different)
    assert digest(ones) == digest(ones.t().contiguous().t())


@pytest.mark.parametrize(
    ("value", "plain"), [(1.5, 1.5), (None, None), (float("inf"), "inf"), (float("nan"), "nan")], ids=str
)
def test_what_json_cannot_hold_is_text(value: float | None, plain: Any) -> None:
    assert _plain(value) == plain


def test_a_number_that_is_not_finite_is_named(make_run_dir: MakeRunDir) -> None:
    run_dir = make_run_dir({"model.kwargs": {"fault": "nan in evaluation"}}, phase="prove")
    assert entry.main([str(run_dir.path), "prove"]) == 1
    (error,) = run_dir.phase("prove").errors()
    assert error["summary"] == (
        "metrics.eval_loss is nan: the run left the range of numbers, often for a learning rate too high"
    )
    assert run_dir.phase("prove").read_result() is None


@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_that_fails_leaves_why(
    make_run_dir: MakeRunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: int
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    run_dir = make_run_dir({"model.kwargs": {"fault": "raise"}}, phase="measure")
    assert entry.main([str(run_dir.path), "measure"]) == 1
    (error,) = run_dir.phase("measure").errors()
    assert (error["rank"], error["summary"], error["where"]) == (rank, "ValueError: bad row 17", "a step")
    assert error["out_of_memory"] is None
    assert run_dir.phase("measure").error(rank).exists()
    assert 'raise ValueError("bad row 17")' in capsys.readouterr().err


def test_a_mistake_of_the_users_is_told_in_parts(make_run_dir: MakeRunDir) -> None:
    run_dir = make_run_dir({"model.factory": "mine:absent"}, phase="measure")
    assert entry.main([str(run_dir.path), "measure"]) == 1
    (error,) = run_dir.phase("measure").errors()
    assert [problem["key"] for problem in error["problems"]] == ["model.factory"]


def test_only_rank_0_leaves_the_result(make_run_dir: MakeRunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(phases.PHASES, "probe", ("prove", "restore_and_evaluate", {}))
    monkeypatch.setattr("pilotkit.worker.phases.prove.restore_and_evaluate", lambda _: {"a": 1})
    run_dir = make_run_dir(phase="probe")
    run_phase(run_dir, phase="probe", rank=1)
    assert run_dir.phase("probe").read_result() is None
    run_phase(run_dir, phase="probe", rank=0)
    assert run_dir.phase("probe").read_result() == {"a": 1}


@pytest.mark.parametrize("arguments", [[], ["one"], ["one", "two", "three"]], ids=len)
def test_usage(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert entry.main(arguments) == 2
    assert capsys.readouterr().err == "usage: python -m pilotkit.worker RUN_DIR PHASE\n"


def test_devices_are_described_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["--describe-devices"]) == 0
    described = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert described["torch"] == torch.__version__
    assert isinstance(described["names"], list)


def test_every_phase_has_its_function() -> None:
    import importlib

    for module, function, _ in PHASES.values():
        assert callable(getattr(importlib.import_module(f"pilotkit.worker.phases.{module}"), function))


def test_warm_up_is_timed_apart(make_run_dir: MakeRunDir) -> None:
    from pilotkit.worker.build import build
    from pilotkit.worker.session import open_session

    run_dir = make_run_dir(phase="measure")
    waits: list[int] = []
    with open_session(run_dir, phase="measure") as session:
        built = build(session, strategy="single")
        step = built.trainer.train_step
        built.trainer.train_step = lambda clock: waits.append(1) or step(clock)  # type: ignore[method-assign, misc, assignment] # counts
        timed = run_timed_steps(session, built, num_warmup_steps=1, max_warmup_steps=2, num_measured_steps=3, label="x")
        built.close()
    num_warmup_steps = len(timed.warmup_seconds)
    assert 1 <= num_warmup_steps <= 2
    assert (len(timed.step_seconds), len(waits), len(timed.results)) == (3, num_warmup_steps + 3, num_warmup_steps + 3)
    assert {len(seconds) for seconds in timed.section_seconds.values()} == {3}
    assert set(timed.section_seconds) == {"data_wait", "forward", "backward", "optimizer"}
    assert (timed.first.step, timed.last.step) == (1, num_warmup_steps + 3)


@pytest.mark.parametrize("num_before", [1, 5])
def test_a_run_again_warms_up_as_long_as_the_first_time(make_run_dir: MakeRunDir, num_before: int) -> None:
    """The clock ends warm-up; another number of steps would be other losses under the same lock."""
    from pilotkit.worker.build import build
    from pilotkit.worker.session import open_session

    run_dir = make_run_dir({"replay.warmup_steps": {"measure": num_before, "pilot_ddp": 9}}, phase="measure")
    with open_session(run_dir, phase="measure") as session:
        built = build(session, strategy="single")
        timed = run_timed_steps(session, built, num_warmup_steps=1, max_warmup_steps=2, num_measured_steps=1, label="x")
        built.close()
    assert len(timed.warmup_seconds) == num_before


def test_a_pilot_that_was_told_to_stop_goes_on_as_if_it_had_not(
    make_run_dir: MakeRunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three attempts: each saves after a few steps, and the losses are those of a run that was left alone."""
    from pilotkit.worker.session import Session

    options = {
        "pilot.num_warmup_steps": 2,
        "pilot.max_warmup_steps": 2,
        "pilot.num_measured_steps": 6,
        "train.seed": 3,
    }
    losses: dict[int, float] = {}
    tell = Session.progress
    stop_at: list[int] = []

    def note(self: Session, *args: Any, step: int, **more: Any) -> None:
        tell(self, *args, step=step, **more)
        if step in stop_at:
            self.phase_dir.stop.touch()

    from pilotkit.train.trainer import StepResult, Trainer

    take = Trainer.train_step

    def train_step(self: Trainer, *args: Any) -> StepResult:
        result = take(self, *args)
        assert losses.setdefault(result.step, result.loss) == result.loss, "the step is another one than it was"
        return result

    monkeypatch.setattr(Session, "progress", note)
    monkeypatch.setattr(Trainer, "train_step", train_step)
    alone = result_of(make_run_dir(options, phase="pilot_single"), "pilot_single")
    assert [found["last_step"] for found in alone["attempts"]] == [8]
    # Its steps go on where a run without a stop would go on, and further: warming up again takes steps.
    phase = "pilot_single@1"
    run_dir = make_run_dir(options, phase=phase)
    for place in (1, 5):
        stop_at[:] = [place]
        assert result_of(run_dir, phase) == {"stopped_at": place}
        run_dir.phase(phase).set_aside()
    stop_at.clear()
    found = result_of(run_dir, phase)
    assert [(one["first_step"], one["last_step"], one["num_counted"]) for one in found["attempts"]] == [
        (1, 1, 0),
        (2, 5, 2),
        (6, 11, 4),
    ]
    assert found["metrics"]["num_measured_steps"] == len(found["steps"]) == 6
    assert found["metrics"]["num_warmup_steps"] == 5
    assert found["losses"][0] == alone["losses"][0]
    assert [path.name for path in run_dir.phase(phase).attempts()] == ["attempt-1", "attempt-2"]
