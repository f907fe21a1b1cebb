"""From a composed configuration to a stage, and what is told of a sweep: from the disk, one row a point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from pilotkit import dispatch as module
from pilotkit.config.load import dump
from pilotkit.config.schema import PilotConfig
from pilotkit.dispatch import dispatch, tell_sweep
from pilotkit.errors import ConfigError, Problem, StageFailed
from pilotkit.records.points import Point, read_points, write_point, write_point_config
from pilotkit.records.record import Failure, Record
from pilotkit.stages import all as all_module
from pilotkit.stages import execute as execute_module
from pilotkit.stages.execute import Order


def make_sweep(folder: Path, *statuses: str) -> None:
    for index, status in enumerate(statuses):
        point = Point(index, [f"train.seq_len={index}"])
        if status == "wrong":
            point.problem, point.is_config_problem = "1 problem in the configuration", True
        elif status == "crashed":
            point.problem = "crashed without a word"
        else:
            run = folder / f"run {index}"
            run.mkdir(parents=True)
            record = Record(f"id{index}", "measure", status, "", overrides=point.overrides)
            record.problem = None if status == "ok" else Failure(f"{status} for a reason")
            from pilotkit.records.run_dir import RunDir

            RunDir(run).write_record(record)
            point.run_dir = str(run)
        write_point(folder / str(index), point)


@pytest.mark.parametrize(
    ("statuses", "code", "words"),
    [
        (["ok", "does_not_fit"], 0, "2 points: 1 does not fit, 1 ok"),
        (["ok", "failed", "ok"], 1, "3 points: 1 failed, 2 ok"),
        (["ok", "refused"], 1, "2 points: 1 ok, 1 refused"),
        (["ok", "wrong"], 2, "2 points: 1 ok, 1 refused"),
        (["crashed", "wrong"], 1, "2 points: 1 failed, 1 refused"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_exit_code_and_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], statuses: list[str], code: int, words: str
) -> None:
    make_sweep(tmp_path, *statuses)
    assert tell_sweep(tmp_path) == code
    assert capsys.readouterr().out.splitlines()[-1] == f"{words}. Records: {tmp_path}"


def test_a_sweep_that_was_refused_has_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tell_sweep(tmp_path) == 1
    assert capsys.readouterr().out == ""


def test_every_point_has_a_row_with_what_sets_it_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_sweep(tmp_path, "ok", "failed", "wrong", "crashed")
    tell_sweep(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []  # in a pipe nothing is filled up with spaces
    rows = [line.split() for line in lines]
    assert rows[1][:2] == ["status", "train.seq_len"]
    # Those without a run, too, say which point they are.
    assert [row[:2] for row in rows[3:7]] == [["ok", "0"], ["failed", "1"], ["refused", "2"], ["failed", "3"]]
    assert rows[6][-4:] == ["crashed", "without", "a", "word"]


def test_a_folder_is_printed_as_it_is_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "o[red]:smile:"
    make_sweep(folder, "ok")
    tell_sweep(folder)
    assert capsys.readouterr().out.splitlines()[-1] == f"1 points: 1 ok. Records: {folder}"


@pytest.fixture
def hydra_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """`hydra_says(RunMode.MULTIRUN, *overrides)`: what Hydra tells a job of itself."""

    def say(mode: RunMode, *overrides: str) -> None:
        told = SimpleNamespace(
            mode=mode,
            runtime=SimpleNamespace(cwd=str(tmp_path), output_dir=str(tmp_path / "sweep" / "4")),
            overrides=OmegaConf.create({"task": list(overrides)}),
            job=SimpleNamespace(num=4),
        )
        monkeypatch.setattr(HydraConfig, "get", staticmethod(lambda: told))

    return say


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Order]]:
    """`played(record)`: every stage ends with this record, or raises it; the orders that were given."""

    def play(end: Record | BaseException) -> list[Order]:
        orders: list[Order] = []

        def execute(_: str, order: Order) -> Record:
            orders.append(order)
            if order.on_created is not None:
                order.on_created(SimpleNamespace(path=Path("/run")))  # type: ignore[arg-type] # only the path is read
            if isinstance(end, BaseException):
                raise end
            return end

        monkeypatch.setattr(execute_module, "execute", execute)
        monkeypatch.setattr(all_module, "run_all", lambda order: execute("all", order))
        return orders

    return play


@pytest.mark.parametrize("stage", ["measure", "all"])
def test_a_single_run(
    compose: Callable[..., DictConfig], hydra_says: Any, played: Any, tmp_path: Path, stage: str
) -> None:
    hydra_says(RunMode.RUN, f"stage={stage}", "output_dir=out", "data.num_workers=${train.seed}")
    orders = played(Record("id", stage, "does_not_fit", ""))
    assert dispatch(compose(f"stage={stage}", "output_dir=out")) is None
    (order,) = orders
    assert order.launch_dir == tmp_path
    assert order.config.output_dir == str(tmp_path / "out")
    assert order.overrides == [f"stage={stage}", "output_dir=out", "data.num_workers=${train.seed}"], "as typed"
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (
            Failure("rank 1: ValueError: x", cause="bad row 17"),
            "measure timed out: rank 1: ValueError: x\n  bad row 17",
        ),
        (Failure("rank 1: ValueError: x"), "measure timed out: rank 1: ValueError: x"),
        (None, "measure timed out: it left no reason"),
    ],
    ids=["with a cause", "without", "no reason"],
)
def test_a_single_run_that_fails_raises_why(
    compose: Callable[..., DictConfig], hydra_says: Any, played: Any, problem: Failure | None, message: str
) -> None:
    hydra_says(RunMode.RUN, "stage=measure")
    played(Record("id", "measure", "timed_out", "", problem=problem))
    with pytest.raises(StageFailed) as caught:
        dispatch(compose("stage=measure"))
    assert str(caught.value) == message


def test_a_point_says_where_its_run_is(
    compose: Callable[..., DictConfig], hydra_says: Any, played: Any, tmp_path: Path
) -> None:
    hydra_says(RunMode.MULTIRUN, "train.seq_len=64")
    played(Record("id", "measure", "failed", "", problem=Failure("x")))
    assert dispatch(compose("stage=measure")) == {"point": str(tmp_path / "sweep" / "4")}
    (point,) = read_points(tmp_path / "sweep")
    assert (point.index, point.overrides, point.run_dir) == (4, ["train.seq_len=64"], "/run")
    assert (point.problem, point.is_config_problem) == (None, False)


@pytest.mark.parametrize("found_by", ["us", "the worker"])
def test_a_point_with_a_wrong_configuration_lets_the_others_go_on(
    compose: Callable[..., DictConfig], hydra_says: Any, played: Any, tmp_path: Path, found_by: str
) -> None:
    hydra_says(RunMode.MULTIRUN, "train.global_batch_size=7")
    if found_by == "us":
        orders = played(Record("id", "measure", "ok", ""))
        dispatch(compose("stage=measure", "train.global_batch_size=7"))
        assert orders == []
    else:
        played(ConfigError([Problem("model.factory", "x", "a callable", "name one")], found_by="measure"))
        dispatch(compose("stage=measure"))
    (point,) = read_points(tmp_path / "sweep")
    assert point.is_config_problem
    assert str(point.problem).startswith("1 problem in the configuration; ")
    assert point.run_dir == (None if found_by == "us" else "/run")


def test_a_point_runs_what_was_fixed_at_submission(
    compose: Callable[..., DictConfig],
    changed: Callable[..., PilotConfig],
    hydra_says: Any,
    played: Any,
    tmp_path: Path,
) -> None:
    hydra_says(RunMode.MULTIRUN)
    fixed = changed({"stage": "measure", "train.seq_len": 77})
    write_point_config(tmp_path / "sweep" / "4", dump(fixed))
    orders = played(Record("id", "measure", "ok", ""))
    dispatch(compose("stage=measure", "train.seq_len=64"))
    assert [order.config for order in orders] == [fixed]


def test_the_end_of_a_run_is_printed(
    compose: Callable[..., DictConfig], hydra_says: Any, played: Any, tmp_path: Path, capsys: Any
) -> None:
    hydra_says(RunMode.RUN, "stage=measure")
    played(Record("id", "measure", "ok", "", wall_seconds=2.0))
    module.dispatch(compose("stage=measure", "output_dir=/o", "name=n"))
    assert capsys.readouterr().out == "measure: ok in 2.00 s\n  record: /o/n/measure/id\n"
