"""The figures of a study in the files of an experiment tracker: TensorBoard, MLflow, Weights & Biases (offline).

Called by stage `report`, for those that `report.trackers` names. Writes below one folder and sends nothing anywhere:
`tensorboard --logdir`, `mlflow ui --backend-store-uri` and `wandb sync` read it, when and where the user wants.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pilotkit.records.record import Record
from pilotkit.report.losses import Series, precision_series, restored_series

# What the libraries would do by themselves beside writing files. Read when they are imported or started.
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_ALLOW_FILE_STORE": "true", "WANDB_MODE": "offline", "WANDB_SILENT": "true",
    "WANDB_ERROR_REPORTING": "false",
}  # fmt: skip


@dataclass(frozen=True)
class Tracked:
    """What every tracker is told. `scalars` by `stage/metric`; `curves` as (step, value); `started` in seconds."""

    study: str
    params: Mapping[str, str]
    scalars: Mapping[str, float]
    curves: Mapping[str, Sequence[tuple[int, float]]]
    started: float


def tracked(records: Sequence[Record], *, study: str, params: Mapping[str, Any]) -> Tracked:
    """Every metric of every record, and what has a value a step: losses by precision, the restore, measured steps."""
    curves: dict[str, Sequence[tuple[int, float]]] = {}
    for record in records:
        if record.stage == "measure" and record.details.get("steps"):
            curves["measure/each_step_seconds"] = list(enumerate(map(float, record.details["steps"]), 1))
        of_stage: dict[str, Callable[[Record], list[Series]]] = {
            "numerics": precision_series,
            "restore": restored_series,
        }
        for series in of_stage[record.stage](record) if record.stage in of_stage else []:
            curves.setdefault(f"{record.stage}/loss {series.name}".replace(",", ""), series.points)
    return Tracked(
        study,
        {**{name: str(value) for name, value in params.items()}, **{r.stage: r.run_id for r in records}},
        {f"{record.stage}/{name}": float(value) for record in records for name, value in record.metrics.items()},
        {name: points for name, points in curves.items() if points},
        min((datetime.fromisoformat(record.started_at).timestamp() for record in records), default=0.0),
    )


def write_trackers(names: Sequence[str], data: Tracked, *, folder: Path) -> dict[str, Path]:
    """Write each below `folder`, and return where. The configuration was checked: the libraries are there."""
    with _quiet():
        found = {}
        for name in names:
            found[name] = folder / name
            found[name].mkdir(parents=True, exist_ok=True)
            _WRITERS[name](data, found[name])
    return found


def _tensorboard(data: Tracked, folder: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    points = {**{name: [(0, value)] for name, value in data.scalars.items()}, **data.curves}
    for name, values in points.items():
        for step, value in values:
            summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
            writer.add_event(Event(wall_time=data.started, step=step, summary=summary))
    writer.close()


def _mlflow(data: Tracked, folder: Path) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(tracking_uri=folder.as_uri())
    milliseconds = round(1000 * data.started)
    run = client.create_run(client.create_experiment(data.study), start_time=milliseconds, run_name=data.study)
    points = {**{name: [(0, value)] for name, value in data.scalars.items()}, **data.curves}
    metrics = [Metric(name, value, milliseconds, step) for name, values in points.items() for step, value in values]
    params = [Param(name, value) for name, value in data.params.items()]
    for start in range(0, max(len(metrics), 1), 1000):  # the most that one call takes
        client.log_batch(run.info.run_id, metrics=metrics[start : start + 1000], params=params if start == 0 else [])
    client.set_terminated(run.info.run_id)


def _wandb(data: Tracked, folder: Path) -> None:
    import wandb

    settings = wandb.Settings(
        mode="offline", silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True,
        x_disable_meta=True,
    )  # fmt: skip
    run = wandb.init(project=data.study, dir=str(folder), config=dict(data.params), settings=settings)
    run.summary.update(dict(data.scalars))
    steps = sorted({step for points in data.curves.values() for step, _ in points})
    by_step = {name: dict(points) for name, points in data.curves.items()}
    for step in steps:
        run.log({name: points[step] for name, points in by_step.items() if step in points}, step=step)
    run.finish()
    wandb.teardown()  # its own process would stay until we end


_WRITERS: dict[str, Callable[[Tracked, Path], None]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _QUIET}
    os.environ.update(_QUIET)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
