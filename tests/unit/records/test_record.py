"""The record's own rules: origins, what is written, what a later reader is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pilotkit.errors import RecordError
from pilotkit.records.record import ORIGINS, SCHEMA_VERSION, Failure, Metrics, PhaseRun, Record


def test_metrics_keep_each_number_with_its_origin() -> None:
    metrics = Metrics()
    metrics.add("measured", {"step_seconds": 0.5, "mfu": None}, num_steps=10)
    metrics.add("projected", run_hours=12.0)
    assert metrics.values == {"step_seconds": 0.5, "num_steps": 10, "run_hours": 12.0}
    assert metrics.origins == {"step_seconds": "measured", "num_steps": "measured", "run_hours": "projected"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), None], ids=str)
def test_metrics_never_hold_a_number_that_is_none(value: float | None) -> None:
    metrics = Metrics()
    metrics.add("measured", mfu=value)
    assert metrics.values == {}
    assert metrics.origins == {}


def test_a_metric_given_twice_is_our_bug() -> None:
    metrics = Metrics()
    metrics.add("measured", mfu=0.4)
    with pytest.raises(AssertionError, match="metric mfu is given twice"):
        metrics.add("estimated", mfu=0.5)


def test_an_unknown_origin_is_our_bug() -> None:
    assert "guessed" not in ORIGINS
    with pytest.raises(AssertionError, match="guessed"):
        Metrics().add("guessed", mfu=0.5)


def test_record_comes_back_as_it_was(make_record: Callable[..., Record]) -> None:
    record = make_record(
        phases=[PhaseRun(name="steps", wall_seconds=1.5, status="ok")],
        problem=Failure(summary="rank 1 ended", cause="killed", rank=1),
        details={"grid": [[1, 2], [3, 4]]},
        overrides=["train.seq_len=64"],
        folder="not part of the file",
    )
    plain = json.loads(json.dumps(record.to_dict()))
    assert next(iter(plain)) == "schema_version"
    assert "folder" not in plain
    record.folder = "where it is now"
    assert Record.from_dict(plain, folder="where it is now") == record


def test_a_field_that_a_later_patch_added_is_passed_over(make_record: Callable[..., Record]) -> None:
    assert Record.from_dict({**make_record().to_dict(), "colour": "blue"}) == make_record()


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, "1", None], ids=repr)
def test_an_unknown_schema_version_is_explained(make_record: Callable[..., Record], version: object) -> None:
    plain = {**make_record().to_dict(), "schema_version": version}
    with pytest.raises(RecordError) as caught:
        Record.from_dict(plain, folder="outputs/study/measure/1")
    assert str(caught.value) == (
        f"outputs/study/measure/1: schema version {version!r} is not known to this pilotkit (it reads 1); "
        "read it with the version that wrote it, or run the stage again"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"status": None},
        {"status": "exploded"},
        {"started_at": 20260131},
        {"metrics": [1, 2]},
        {"metrics": {"mfu": "high"}},
        {"config": None},
        {"phases": 5},
        {"phases": [{"name": "steps"}]},
        {"problem": "it broke"},
        {"wall_seconds": "long"},
    ],
    ids=lambda change: json.dumps(change),
)
def test_a_record_with_a_wrong_field_is_refused(make_record: Callable[..., Record], change: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match=r"^here: not a record of this version \(.+\)$"):
        Record.from_dict({**make_record().to_dict(), **change}, folder="here")


@pytest.mark.parametrize("name", ["run_id", "stage", "status", "started_at"])
def test_a_record_without_a_needed_field_is_refused(make_record: Callable[..., Record], name: str) -> None:
    plain = make_record().to_dict()
    del plain[name]
    with pytest.raises(RecordError, match=f"^here: not a record of this version .*{name}"):
        Record.from_dict(plain, folder="here")


def test_records_of_yesterday_are_read(tmp_path: Path) -> None:
    """The smallest record of schema version 1: every later reader of this version must take it."""
    plain = {"schema_version": 1, "run_id": "a", "stage": "lock", "status": "ok", "started_at": "2026-01-31T00:00:00"}
    record = Record.from_dict(plain)
    assert (record.run_id, record.metrics, record.problem, record.parent_run_id) == ("a", {}, None, None)
