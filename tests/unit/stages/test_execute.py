"""Whatever happens to a stage, its folder says what: a record for every kind of end."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pilotkit.config.identity import config_digest
from pilotkit.config.load import load_file
from pilotkit.config.schema import PilotConfig
from pilotkit.errors import ConfigError, Interrupted, OutputError, Problem, StageRefused
from pilotkit.records import atomic
from pilotkit.records.record import Failure, Metrics, PhaseRun, Record
from pilotkit.records.run_dir import RunDir
from pilotkit.stages import execute as module
from pilotkit.stages.console import Console
from pilotkit.stages.execute import Order, announce, execute
from pilotkit.stages.run import Run, StageResult

Work = Callable[[Run], StageResult]


@pytest.fixture(autouse=True)
def _no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "light_provenance", lambda **_: {"git": "none"})


@pytest.fixture
def order(tmp_path: Path, changed: Callable[..., PilotConfig]) -> Order:
    config = changed({"output_dir": str(tmp_path / "out"), "name": "study"})
    return Order(config, tmp_path, ["stage=probe", "name=study"], Console(io.StringIO()))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Callable[[Work], str]:
    """`stage(work)`: a stage of that name does the work."""

    def define(work: Work) -> str:
        probe: Any = types.ModuleType("pilotkit.stages.probe")
        probe.run = work
        monkeypatch.setitem(sys.modules, "pilotkit.stages.probe", probe)
        return "probe"

    return define


def on_disk(order: Order) -> Record:
    (path,) = Path(order.config.output_dir).glob("study/probe/*")
    return RunDir(path).read_record()


def test_ok(order: Order, stage: Callable[[Work], str]) -> None:
    metrics = Metrics()
    metrics.add("measured", step_seconds=0.25)

    def work(run: Run) -> StageResult:
        assert on_disk(order).status == "running", "readers see that it goes on"
        run.phases.append(PhaseRun("probe", 1.0, "ok"))
        run.console.line("at work")
        return StageResult(metrics=metrics, details={"a": 1}, artifacts={"page": "report.html"})

    returned = execute(stage(work), order)
    record = on_disk(order)
    folder = Path(record.folder)
    assert record.status == "ok"
    assert record.metrics == {"step_seconds": 0.25}
    assert record.origins == {"step_seconds": "measured"}
    assert record.phases == [PhaseRun("probe", 1.0, "ok")]
    assert record.details == {"a": 1}
    assert record.artifacts == {"log": "driver.log", "page": "report.html"}
    assert record.overrides == ["stage=probe", "name=study"]
    assert record.config_digest == config_digest(order.config)
    assert record.provenance["git"] == "none"
    assert record.problem is None
    assert returned.to_dict() == record.to_dict()
    assert load_file(folder / "run.yaml") == order.config
    assert (folder / "overrides.txt").read_text(encoding="utf-8") == "stage=probe\nname=study\n"
    assert (folder / "driver.log").read_text(encoding="utf-8").endswith(" at work\n")
    assert order.console.log is None, "later lines are another run's"


@pytest.mark.parametrize(
    ("error", "summary"),
    [
        (StageRefused("asked 4, visible 1"), "asked 4, visible 1"),
        (OSError(errno.ENOSPC, "No space left on device", "/out/x"), "No space left on device (/out/x)"),
        (OSError("odd"), "odd"),
        (ValueError("no such thing"), "ValueError: no such thing"),
    ],
    ids=["refused", "disk full", "another system error", "programming error"],
)
def test_an_end_that_is_only_the_stages(
    order: Order, stage: Callable[[Work], str], error: Exception, summary: str
) -> None:
    def work(_: Run) -> StageResult:
        raise error

    record = execute(stage(work), order)
    assert record.to_dict() == on_disk(order).to_dict()
    assert record.problem is not None
    assert record.problem.summary == summary
    if isinstance(error, StageRefused):
        assert (record.status, record.problem.traceback) == ("refused", "")
    else:
        assert record.status == "failed"
        assert "raise error" in record.problem.traceback


class Ended(KeyboardInterrupt):
    def __str__(self) -> str:
        return "signal 15 (SIGTERM)"


@pytest.mark.parametrize(
    ("error", "status", "summary"),
    [
        pytest.param(
            ConfigError([Problem("model.factory", "x", "a callable", "name one")], found_by="measure"),
            "refused",
            "1 problem in the configuration; found by measure.\n"
            "1. model.factory=x\n    allowed: a callable\n    to mend: name one",
            id="a wrong configuration",
        ),
        pytest.param(KeyboardInterrupt(), "cancelled", "ended by Ctrl-C", id="ctrl-c"),
        pytest.param(Ended(), "cancelled", "ended by signal 15 (SIGTERM)", id="signal"),
        pytest.param(
            SystemExit(1), "cancelled", "ended by a closed output: nobody reads it any more", id="closed output"
        ),
    ],
)
def test_an_end_of_more_than_the_stage_is_recorded_and_goes_on(
    order: Order, stage: Callable[[Work], str], error: BaseException, status: str, summary: str
) -> None:
    def work(run: Run) -> StageResult:
        run.phases.append(PhaseRun("probe", 1.0, "failed"))
        raise error

    with pytest.raises(type(error)):
        execute(stage(work), order)
    record = on_disk(order)
    assert (record.status, record.problem) == (status, Failure(summary))
    assert record.phases == [PhaseRun("probe", 1.0, "failed")]
    assert not list(Path(record.folder).glob(".reserve"))


def test_a_folder_that_takes_no_configuration_raises(
    order: Order, stage: Callable[[Work], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(atomic, "write_text", full)
    with pytest.raises(OutputError, match=r"/study/probe/\S+ cannot be written: No space left on device$"):
        execute(stage(lambda _: StageResult()), order)


def test_nothing_is_made_when_there_is_nothing_to_say(
    order: Order, stage: Callable[[Work], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git may take its time; Ctrl-C meanwhile leaves no folder that nobody can explain."""

    def slow(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "light_provenance", slow)
    with pytest.raises(KeyboardInterrupt):
        execute(stage(lambda _: StageResult()), order)
    assert not Path(order.config.output_dir).exists()


def leave_record(order: Order, stage: str, run_id: str, **more: Any) -> None:
    record = Record(run_id, stage, "ok", f"2026-01-01T00:00:{run_id}", config_digest=config_digest(order.config))
    record.lock_digest = more.get("lock_digest")
    path = Path(order.config.output_dir) / "study" / stage / run_id
    path.mkdir(parents=True)
    RunDir(path).write_record(record)


def test_the_digest_of_the_newest_lock_is_carried(order: Order, stage: Callable[[Work], str]) -> None:
    for number in ("01", "02"):
        leave_record(order, "lock", number, lock_digest=f"digest {number}")
    leave_record(order, "measure", "03", lock_digest="older")
    evidence: list[object] = []

    def work(run: Run) -> StageResult:
        evidence.extend(run.evidence)
        return StageResult()

    assert execute(stage(work), order).lock_digest == "digest 02"
    assert evidence == ["lock"], "the other records are not this stage's to read"


def test_a_stage_that_reads_is_given_all_records(
    order: Order, stage: Callable[[Work], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READERS", ("probe",))
    leave_record(order, "measure", "01")
    leave_record(order, "lock", "02", lock_digest="d")
    evidence: list[str] = []

    def work(run: Run) -> StageResult:
        evidence.extend(sorted(run.evidence))
        return StageResult()

    execute(stage(work), order)
    assert evidence == ["lock", "measure"]


def test_a_new_lock_has_its_own_digest_and_never_the_old_one(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    from pilotkit.stages import lock

    leave_record(order, "lock", "01", lock_digest="old")
    monkeypatch.setattr(lock, "run", lambda _: StageResult(details={"lock_digest": "new", "lock": {}}))
    record = execute("lock", order)
    assert (record.lock_digest, record.details) == ("new", {"lock": {}})
    monkeypatch.setattr(lock, "run", lambda _: StageResult("failed"))
    assert execute("lock", order).lock_digest is None


def test_a_part_of_a_run_gives_the_log_back(order: Order, tmp_path: Path, stage: Callable[[Work], str]) -> None:
    order.console.log = tmp_path / "outer.log"
    execute(stage(lambda _: StageResult()), order)
    assert order.console.log == tmp_path / "outer.log"


def test_the_sweep_is_told_where_the_run_is(order: Order, stage: Callable[[Work], str]) -> None:
    told: list[RunDir] = []
    replaced = Order(order.config, order.launch_dir, order.overrides, order.console, on_created=told.append)
    record = execute(stage(lambda _: StageResult()), replaced)
    assert [run_dir.run_id for run_dir in told] == [record.run_id]


@pytest.mark.parametrize(("with_reason", "lines"), [(True, ["  asked 4, visible 1"]), (False, [])])
def test_the_end_is_announced(with_reason: bool, lines: list[str]) -> None:
    stream = io.StringIO()
    record = Record("id", "pilot", "timed_out", "", wall_seconds=75, problem=Failure("asked 4, visible 1"))
    announce(record, Console(stream), with_reason=with_reason)
    assert stream.getvalue().splitlines() == ["pilot: timed out, 1 min 15 s", *lines]


def test_a_record_is_json_that_others_read(order: Order, stage: Callable[[Work], str]) -> None:
    execute(stage(lambda _: StageResult(details={"größe": "模型"})), order)
    (path,) = Path(order.config.output_dir).glob("study/probe/*/record.json")
    assert json.loads(path.read_text(encoding="utf-8"))["details"] == {"größe": "模型"}


@pytest.mark.parametrize("continues", [True, False])
def test_an_attempt_goes_on_in_the_folder_of_the_one_before(
    order: Order, stage: Callable[[Work], str], monkeypatch: pytest.MonkeyPatch, continues: bool
) -> None:
    """The record of each attempt stays; a stage that cannot go on gets a folder of its own."""

    def told(_run: Run) -> StageResult:
        raise Interrupted("preempted", "told")

    name = stage(told)
    monkeypatch.setattr(module, "CONTINUES", (name,) if continues else ())
    for _ in range(2):
        with pytest.raises(Interrupted):
            execute(name, order)
        order = dataclasses.replace(order, earlier=RunDir(min(Path(order.config.output_dir).glob("study/*/*"))))
    stage(lambda run: StageResult("ok"))
    record = execute(name, order)
    folder = Path(record.folder)
    assert record.status == "ok"
    earlier = [json.loads(path.read_text())["status"] for path in sorted(folder.glob("record-*.json"))]
    assert earlier == (["preempted"] * 2 if continues else [])
    assert len(list(folder.parent.iterdir())) == (1 if continues else 3)
