"""The figures of a study in each tracker's own files, written and read back by the real libraries."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from pilotkit.records.record import Record
from pilotkit.report.trackers import Tracked, tracked, write_trackers

SAMPLE = Path(__file__).parents[1] / "unit" / "report" / "sample.py"
NAMES = ("tensorboard", "mlflow", "wandb")

# Other people's modules warn of what they like.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def data() -> Tracked:
    records: list[Record] = list(runpy.run_path(str(SAMPLE))["go_records"](Path("study")).values())
    losses = {"reference": {"losses": [3.0, 2.0, 1.5]}, "noise": []}
    records.append(Record("numerics-1", "numerics", "ok", "2026-03-01T11:00:00+00:00", details={"reference": losses}))
    return tracked(records, study="tiny", params={"model": "gpt_tiny", "seq_len": 128})


@pytest.fixture(scope="module")
def written(data: Tracked, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    before, children = dict(os.environ), psutil.Process().children(recursive=True)
    found = write_trackers(NAMES, data, folder=tmp_path_factory.mktemp("trackers"))
    assert dict(os.environ) == before
    assert psutil.Process().children(recursive=True) == children  # W&B starts one of its own
    return found


def test_what_is_told_is_every_metric_and_every_curve(data: Tracked) -> None:
    assert data.scalars["measure/step_seconds"] == 0.3141
    assert data.curves["numerics/loss fp32"] == [(1, 3.0), (2, 2.0), (3, 1.5)]
    assert len(data.curves["measure/each_step_seconds"]) == 30
    assert (data.params["model"], data.params["numerics"]) == ("gpt_tiny", "numerics-1")


def test_tensorboard_reads_it(data: Tracked, written: dict[str, Path]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(written["tensorboard"]))
    found.Reload()
    assert set(found.Tags()["scalars"]) == {*data.scalars, *data.curves}
    assert found.Scalars("measure/step_seconds")[0].value == pytest.approx(0.3141)
    loss = [(event.step, event.value) for event in found.Scalars("numerics/loss fp32")]
    assert loss == data.curves["numerics/loss fp32"]


def test_mlflow_reads_it(data: Tracked, written: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=written["mlflow"].as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    assert run.data.params["seq_len"] == "128"
    assert run.data.metrics["measure/step_seconds"] == 0.3141
    assert set(run.data.metrics) == {*data.scalars, *data.curves}
    history = client.get_metric_history(run.info.run_id, "numerics/loss fp32")
    assert sorted((item.step, item.value) for item in history) == data.curves["numerics/loss fp32"]


def test_wandb_keeps_it_offline(data: Tracked, written: dict[str, Path]) -> None:
    (path,) = written["wandb"].glob("wandb/offline-run-*/*.wandb")
    held = path.read_bytes()  # protocol buffers, in which texts lie as they are
    assert [name for name in (*data.scalars, *data.curves, "seq_len", "0.3141") if name.encode() not in held] == []


def test_the_report_leaves_what_was_asked_for(pilotkit_cli: Any, tmp_path: Path) -> None:
    assert pilotkit_cli("stage=lock").returncode == 0
    done = pilotkit_cli("stage=report", "report.trackers=[tensorboard]")
    assert done.returncode == 0, done.stderr
    (events,) = tmp_path.glob("outputs/*/report/*/trackers/tensorboard/events.out.tfevents.*")
    assert b"lock/num_distributions" in events.read_bytes()


def test_no_tracker_imports_torch() -> None:
    code = (
        "import sys, tempfile; from pathlib import Path; from pilotkit.report.trackers import Tracked, write_trackers; "
        "write_trackers(('tensorboard', 'mlflow'), Tracked('s', {}, {'a/b': 1.0}, {}, 0.0), "
        "folder=Path(tempfile.mkdtemp())); sys.exit('torch' in sys.modules)"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
