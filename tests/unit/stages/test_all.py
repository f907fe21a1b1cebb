"""Every chapter in its order; what blocks what; what the whole is worth."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pilotkit.chapters import CHAPTERS
from pilotkit.config.schema import PilotConfig
from pilotkit.errors import ConfigError, Interrupted, Problem
from pilotkit.records.record import Failure, Record
from pilotkit.records.run_dir import RunDir
from pilotkit.stages import all as module
from pilotkit.stages import execute as execute_module
from pilotkit.stages.all import run_all
from pilotkit.stages.console import Console
from pilotkit.stages.execute import Order

# On the CPU nobody reserves anything: its software is qualified when that is asked for by name.
STAGES = [chapter.stage for chapter in CHAPTERS if chapter.built and chapter.stage != "qualify"]
CORE = ["lock", "prove", "measure", "pilot", "restore", "budget", "plan", "report"]
Play = Callable[..., tuple[Record, list[tuple[str, Order]], str]]


@pytest.fixture
def play(tmp_path: Path, changed: Callable[..., PilotConfig], monkeypatch: pytest.MonkeyPatch) -> Play:
    """`play(pilot="failed")`: run all with stages that end so (ok by default); the record, the orders, the output."""

    def run(
        hardware: str = "cpu", earlier: RunDir | None = None, **statuses: str
    ) -> tuple[Record, list[tuple[str, Order]], str]:
        orders: list[tuple[str, Order]] = []

        def execute(stage: str, order: Order) -> Record:
            orders.append((stage, order))
            status = statuses.get(stage, "ok")
            if status == "near its limit":
                raise Interrupted("timed_out", "its time limit is near", may_continue=True)
            if status == "wrong":
                raise ConfigError([Problem("model.factory", "x", "a callable", "name one")], found_by=stage)
            order.console.line(f"  {stage} at work")
            problem = None if status == "ok" else Failure(f"{stage} had a reason")
            record = Record(f"id-{stage}", stage, status, "", problem=problem)
            record.lock_digest = "digest" if stage == "lock" else None
            record.details = {"verdict": {"verdict": "NO-GO"}} if stage == "plan" else {}
            return record

        monkeypatch.setattr(module, "execute", execute)
        monkeypatch.setattr(execute_module, "light_provenance", lambda **_: {})
        stream = io.StringIO()
        config = changed({"output_dir": str(tmp_path / "out"), "name": "study"})
        if hardware != "cpu":
            config.hardware.device_type = "cuda"
        order = Order(config, tmp_path, ["stage=all", "name=study"], Console(stream), earlier=earlier)
        return run_all(order), orders, stream.getvalue()

    return run


def test_the_built_chapters_in_their_order(play: Play) -> None:
    record, orders, printed = play()
    assert [stage for stage, _ in orders] == STAGES
    assert [stage for stage in STAGES if stage in CORE] == CORE
    assert (record.status, record.problem, record.lock_digest) == ("ok", None, "digest")
    assert record.details == {
        "verdict": "NO-GO",
        "stages": {stage: {"run_id": f"id-{stage}", "status": "ok"} for stage in STAGES},
    }
    assert record.artifacts == {"log": "driver.log", "page": "report.html"}
    assert "lock: Exactly what are we running?" in printed
    last = printed.rstrip().splitlines()[-1]
    assert last.startswith("NO-GO: ")
    assert last.endswith(f"/{record.run_id}/report.html")


def test_each_stage_is_told_what_the_others_found(play: Play) -> None:
    record, orders, _ = play()
    for index, (stage, order) in enumerate(orders):
        assert list(order.evidence or {}) == STAGES[:index], stage
        assert order.parent_run_id == record.run_id
        assert order.overrides == ["name=study"], "what was typed, but the stage"
        assert order.page is not None
        assert order.page.parent.name == record.run_id


@pytest.mark.parametrize("status", ["failed", "does_not_fit", "refused"])
def test_an_estimate_keeps_nothing_from_being_tried(play: Play, status: str) -> None:
    _, orders, _ = play(estimate=status)
    assert [stage for stage, _ in orders][:4] == ["lock", "estimate", "prove", "measure"]


@pytest.mark.parametrize("status", ["failed", "mismatch", "does_not_fit", "refused", "timed_out"])
def test_a_stage_that_did_not_work_keeps_the_next_from_starting(play: Play, status: str) -> None:
    record, orders, printed = play(measure=status)
    assert [stage for stage, _ in orders] == ["lock", "estimate", "prove", "measure", "budget", "plan", "report"]
    assert "  measure had a reason" in printed.splitlines()
    if status in ("does_not_fit", "refused"):
        assert (record.status, record.problem) == ("ok", None), "an answer, and not a fault"
    else:
        assert (record.status, record.problem) == ("failed", Failure("measure: measure had a reason"))


def test_every_fault_is_named(play: Play) -> None:
    record, _, _ = play(pilot="failed", report="failed")
    assert record.problem == Failure("pilot: pilot had a reason; report: report had a reason")
    assert record.artifacts == {"log": "driver.log"}, "no page was written"


def test_a_wrong_configuration_ends_it_all_and_is_recorded(play: Play, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        play(prove="wrong")
    (path,) = (tmp_path / "out" / "study" / "all").iterdir()
    record = RunDir(path).read_record()
    assert record.status == "refused"
    assert record.problem is not None
    assert record.problem.summary.startswith("1 problem in the configuration; found by prove.")


def test_an_accelerator_is_qualified(play: Play) -> None:
    _, orders, _ = play(hardware="h100")
    assert [stage for stage, _ in orders] == [chapter.stage for chapter in CHAPTERS if chapter.built]


def test_the_log_tells_of_every_stage(play: Play, tmp_path: Path) -> None:
    play()
    (path,) = (tmp_path / "out" / "study" / "all").glob("*/driver.log")
    lines = [line.partition(" ")[2] for line in path.read_text(encoding="utf-8").splitlines()]
    for chapter in CHAPTERS:
        if chapter.stage in STAGES:
            assert f"{chapter.stage}: {chapter.question}" in lines


@pytest.fixture
def ended(tmp_path: Path) -> Callable[..., RunDir]:
    """`ended(lock="ok", pilot="preempted")`: the folder of an attempt that was ended, with what its stages had left."""

    def leave(*, digests: dict[str, str] | None = None, **statuses: str) -> RunDir:
        folder = RunDir.create(tmp_path / "out", name="study", stage="all")
        folder.write_record(Record(folder.run_id, "all", "preempted", ""))
        for stage, status in statuses.items():
            part = RunDir.create(tmp_path / "out", name="study", stage=stage)
            record = Record(part.run_id, stage, status, "", parent_run_id=folder.run_id, folder=str(part.path))
            record.lock_digest = (digests or {}).get(stage, "digest")
            part.write_record(record)
        return folder

    return leave


def test_an_attempt_goes_on_with_the_stage_that_was_ended(play: Play, ended: Callable[..., RunDir]) -> None:
    """In the same folder, with what was done before as evidence, a failure too; and the pilot in its own folder."""
    earlier = ended(lock="ok", estimate="failed", prove="ok", measure="ok", numerics="ok", pilot="preempted")
    # Another run of this study is none of ours.
    ended(restore="ok")
    record, orders, printed = play(earlier=earlier)
    done = STAGES[: STAGES.index("pilot")]
    assert [stage for stage, _ in orders] == STAGES[STAGES.index("pilot") :]
    assert record.run_id == earlier.run_id
    assert (earlier.path / "record-1.json").exists()
    assert record.details["done_in_earlier_attempts"] == done
    assert list(record.details["stages"]) == STAGES
    pilot = orders[0][1]
    assert {stage: found.status for stage, found in (pilot.evidence or {}).items()}["estimate"] == "failed"
    assert pilot.earlier is not None
    assert pilot.earlier.path.parent.name == "pilot"
    assert all(order.earlier is None for _, order in orders[1:])
    assert f"done in an earlier attempt: {earlier.path.parents[1] / 'lock'}" in printed


@pytest.mark.parametrize(
    ("left", "first"),
    [
        ({"lock": "preempted"}, "lock"),
        ({"lock": "ok", "estimate": "ok", "prove": "timed_out"}, "prove"),
        ({"lock": "ok", "estimate": "ok", "prove": "running"}, "prove"),
        ({"lock": "ok", "estimate": "ok", "prove": "ok", "digests": {"estimate": "another"}}, "estimate"),
    ],
    ids=["the first stage", "no time", "a driver killed", "another lock"],
)
def test_what_has_no_last_word_is_run_again_and_all_after_it(
    play: Play, ended: Callable[..., RunDir], left: dict[str, Any], first: str
) -> None:
    _, orders, _ = play(earlier=ended(**left))
    assert [stage for stage, _ in orders] == STAGES[STAGES.index(first) :]


@pytest.mark.parametrize(("stage", "status"), [("lock", "timed_out"), ("measure", "preempted")])
def test_what_is_done_is_a_reason_to_go_on(play: Play, tmp_path: Path, stage: str, status: str) -> None:
    """Near the time limit; an attempt that got nothing done would get nothing done again."""
    with pytest.raises(Interrupted):
        play(**{stage: "near its limit"})
    (path,) = (tmp_path / "out" / "study" / "all").glob("*/record.json")
    record = RunDir(path.parent).read_record()
    assert record.status == status
    assert record.problem is not None
    assert ("; 3 stages of this attempt are done" in record.problem.summary) == (status == "preempted")
