"""Every chapter in its order; what blocks what; what the whole is worth."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotkit.chapters import CHAPTERS
from pilotkit.config.schema import PilotConfig
from pilotkit.errors import ConfigError, Problem
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

    def run(hardware: str = "cpu", **statuses: str) -> tuple[Record, list[tuple[str, Order]], str]:
        orders: list[tuple[str, Order]] = []

        def execute(stage: str, order: Order) -> Record:
            orders.append((stage, order))
            status = statuses.get(stage, "ok")
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
        order = Order(config, tmp_path, ["stage=all", "name=study"], Console(stream))
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
