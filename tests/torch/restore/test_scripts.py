"""The proof for a user's own script, transformers.Trainer, Lightning and Accelerate: real kills, their own checkpoints.

The whole command is tested in tests/runs; here the traces of many starts are compared by the stage's own comparison.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pilotkit.decide.script_continuation import compare_scripts
from pilotkit.records.run_dir import PhaseDir

ROOT = Path(__file__).resolve().parents[3]
NUM_STEPS = 2


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("trace_runs.py")), str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    told = [path.read_text() for path in folder.glob("*/errors.txt")]
    assert done.returncode == 0, "\n".join([done.stderr[-2000:], *told])

    def read(name):
        return [PhaseDir(folder / name / phase).read_traces() for phase in ("uninterrupted", "killed", "resumed")]

    return read


def compare(traces, name, *, left_out=()):
    rows = compare_scripts(*traces(name), num_steps=NUM_STEPS, rtol=0.0, left_out=left_out)
    return {row["component"]: (row["verdict"], row["note"]) for row in rows}


@pytest.mark.parametrize("name", ["own loop", "transformers", "lightning mid-epoch", "accelerate"])
def test_everything_comes_back(name, traces):
    rows = compare(traces, name)
    assert {verdict for verdict, _ in rows.values()} == {"PASS"}, rows
    for component in ("parameters", "optimizer", "scheduler", "random states"):
        assert f"{component} restored" in rows
        assert f"{component} at the end" in rows
    assert rows["resumed after kill -9"][1] == "at step 2, where it was saved; step 3 was lost"
    assert rows["losses after the restore"] == ("PASS", "2 values, bit for bit")
    assert rows["batches after the restore"] == ("PASS", "equal")


def test_lightning_brings_all_back_but_the_random_states(traces):
    rows = compare(traces, "lightning")
    failed = [component for component, (verdict, _) in rows.items() if verdict == "FAIL"]
    # Each epoch's loader draws a seed, and its checkpoint holds no generator.
    assert failed == ["random states at the end"], rows
    assert rows["random states at the end"][1] == "1 of 9 parts differ, first rank 0 torch"
    forgiven = compare(traces, "lightning", left_out=["random states"])
    assert forgiven["random states at the end"][0] == "NOT RUN"
    assert "FAIL" not in {verdict for verdict, _ in forgiven.values()}


@pytest.mark.parametrize(
    ("name", "failed"),
    [
        # Its checkpoints hold no generator, and no position of a loader that has no `state_dict`.
        (
            "lightning mid-epoch without generators",
            {
                "random states restored": "1 of 9 parts differ, first rank 0 torch",
                "losses after the restore": "step 3",
            },
        ),
        (
            "lightning mid-epoch without a loader's state",
            {"batches after the restore": "rank 0: other ones at step 3", "losses after the restore": "step 3"},
        ),
        # Its loader draws a seed when rows begin, which a run that never stopped did at the start of the epoch.
        (
            "accelerate resumed as documented",
            {"losses after the restore": "step 3", "random states at the end": "1 of 9 parts differ"},
        ),
        (
            "accelerate shuffled by torch's generator",
            {"batches after the restore": "rank 0: other ones at step 3", "losses after the restore": "step 3"},
        ),
        (
            "accelerate without skipping",
            {"batches after the restore": "rank 0: other ones at step 3", "losses after the restore": "step 3"},
        ),
        # It logs at level info that it could not load them, and goes on.
        (
            "accelerate without its random states",
            {
                "random states restored": "1 of 9 parts differ, first rank 0 torch",
                "losses after the restore": "step 3",
            },
        ),
    ],
)
def test_what_a_library_loses_in_the_middle_of_an_epoch_is_named(name, failed, traces):
    """And nothing else: what differs at the end follows from it."""
    rows = compare(traces, name)
    found = {component: note for component, (verdict, note) in rows.items() if verdict == "FAIL"}
    for component, note in failed.items():
        assert note in found.get(component, ""), rows
    allowed = {*failed, "parameters at the end", "optimizer at the end", "random states at the end"}
    assert set(found) <= allowed, rows


@pytest.mark.parametrize(
    ("name", "first", "part"),
    [
        ("own loop without its optimizer", "optimizer restored", "exp_avg"),
        ("own loop without its scheduler", "scheduler restored", "_last_lr"),
        ("own loop without its generator", "random states restored", "rank 0 torch"),
        ("own loop that starts over", "resumed after kill -9", "it started over: rank 0 at 0, saved at 2"),
    ],
)
def test_what_a_script_forgets_is_the_first_that_is_named(name, first, part, traces):
    rows = compare(traces, name)
    failed = [component for component, (verdict, _) in rows.items() if verdict == "FAIL"]
    assert failed[0] == first, rows
    assert part in rows[first][1]


def test_without_a_proof_a_trace_does_nothing(monkeypatch, tmp_path):
    import torch

    from pilotkit.train.run_trace import RunTrace, asked

    for variable in ("PILOTKIT_TRACE_DIR", "PILOTKIT_CHECKPOINT_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PILOTKIT_KILL_AFTER_STEP", "1")
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(2, 2)
    trace = RunTrace(model, torch.optim.SGD(model.parameters()))
    trace.resumed(0)
    trace.step(1)
    assert asked() is None
    assert not model._forward_pre_hooks
    assert list(tmp_path.iterdir()) == []
