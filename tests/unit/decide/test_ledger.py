"""The ledger's arithmetic, each figure computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from pilotkit.decide.ledger import Given, Ledger, LedgerLine, build_ledger
from pilotkit.records.record import Record


def _record(stage: str, **metrics: float) -> Record:
    return Record(run_id=f"{stage}-1", stage=stage, status="ok", started_at="2026-03-01", metrics=metrics)


RECORDS = {
    "prove": _record(
        "prove",
        process_start_seconds=3.0,
        model_load_seconds=2.0,
        first_batch_seconds=1.0,
        checkpoint_save_seconds=9.0,
        restart_seconds=9.0,
    ),
    "measure": _record(
        "measure",
        step_seconds=0.5,
        warmup_seconds=4.5,
        num_warmup_steps=3,
        data_wait_seconds=0.01,
        eval_batch_seconds=0.2,
    ),
    "pilot": _record("pilot", world_size=4, fsdp_step_seconds=0.6, fsdp_start_seconds=7.0),
    "restore": _record("restore", world_size=1, checkpoint_save_seconds=5.0, restart_seconds=8.0),
}


def _ledger(records: dict[str, Record] | None = None, **changed: Any) -> Ledger:
    plan: dict[str, Any] = {
        "num_steps": 1000,
        "num_evals": 10,
        "num_eval_batches": 4,
        "num_checkpoints": 5,
        "given": Given(download_seconds=60.0, copy_out_seconds=30.0),
        "strategy": "single",
        "world_size": 1,
    }
    return build_ledger(RECORDS if records is None else records, **{**plan, **changed})


def _line(ledger: Ledger, part: str) -> LedgerLine:
    return next(line for line in ledger.lines if line.part == part)


def test_parts_come_in_the_order_of_a_run() -> None:
    assert [line.part for line in _ledger().lines] == [
        "download",
        "preprocessing",
        "tokenising",
        "process start",
        "model load",
        "first batch",
        "warm-up",
        "steps",
        "data stalls",
        "evaluation",
        "checkpoint saves",
        "one restart",
        "export",
        "copy-out",
    ]


@pytest.mark.parametrize(
    ("part", "seconds"),
    [
        ("download", 60.0),
        ("process start", 3.0),
        ("model load", 2.0),
        ("first batch", 1.0),
        ("warm-up", 3.0),  # 4.5 s for 3 steps of 0.5 s
        ("steps", 500.0),
        ("data stalls", 10.0),
        ("evaluation", 8.0),  # 10 x 4 x 0.2 s
        ("checkpoint saves", 25.0),  # restore's 5 s, not prove's 9 s
        ("one restart", 8.0),
        ("copy-out", 30.0),
    ],
)
def test_seconds_of_a_part(part: str, seconds: float) -> None:
    assert _line(_ledger(), part).seconds == pytest.approx(seconds)


def test_total_leaves_out_what_lies_within_the_steps() -> None:
    ledger = _ledger()
    assert ledger.total_seconds == pytest.approx(60 + 3 + 2 + 1 + 3 + 500 + 8 + 25 + 8 + 30)
    assert ledger.step_total_seconds == pytest.approx(500.0)
    assert ledger.goodput == pytest.approx(500 / 640)
    assert ledger.unknown == []
    assert _line(ledger, "data stalls").included_in == "steps"


def test_starts_multiply_what_a_start_costs() -> None:
    once, thrice = _ledger(), _ledger(num_starts=3)
    assert once.total_seconds is not None
    assert thrice.total_seconds == pytest.approx(once.total_seconds + 2 * (3 + 2 + 1 + 3))


def test_one_device_is_measured_throughout() -> None:
    assert {line.origin for line in _ledger().lines} == {"given", "measured"}


def test_steps_of_the_piloted_world_are_measured() -> None:
    ledger = _ledger(strategy="fsdp", world_size=4)
    line = _line(ledger, "steps")
    assert (line.seconds, line.origin, line.source_run_id) == (pytest.approx(600.0), "measured", "pilot-1")
    assert line.how == "1000 x 600.0 ms (fsdp_step_seconds of pilot on 4 devices)"


def test_a_piloted_start_holds_its_parts() -> None:
    ledger = _ledger(strategy="fsdp", world_size=4)
    start = _line(ledger, "process start")
    assert (start.seconds, start.origin) == (pytest.approx(7.0), "measured")
    assert start.how == "1 x 7.00 s (fsdp_start_seconds of pilot)"
    assert {line.part for line in ledger.lines if line.included_in == "process start"} == {
        "model load",
        "first batch",
        "warm-up",
    }
    assert ledger.total_seconds == pytest.approx(60 + 7 + 600 + 8 + 25 + 8 + 30)


def test_the_data_set_stands_for_the_first_batch_where_that_was_not_timed() -> None:
    assert _line(_ledger({"prove": _record("prove", data_open_seconds=1.5)}), "first batch").seconds == 1.5


@pytest.mark.parametrize(
    ("world_size", "origin", "where"),
    [
        (4.0, "measured", ""),
        (1.0, "projected", "measured on 1 device"),
        (None, "projected", "number of devices not recorded"),
    ],
    ids=["as many", "fewer", "unknown"],
)
def test_restore_says_on_how_many_devices(world_size: float | None, origin: str, where: str) -> None:
    metrics = {"restart_seconds": 8.0, **({} if world_size is None else {"world_size": world_size})}
    line = _line(_ledger({"restore": _record("restore", **metrics)}, strategy="fsdp", world_size=4), "one restart")
    assert line.origin == origin
    tail = f"; {where}, taken as the same on 4: uncalibrated" if where else ""
    assert line.how == f"1 x 8.00 s (restart_seconds of restore){tail}"


def test_what_one_device_measured_is_projected_on_several() -> None:
    line = _line(_ledger(strategy="fsdp", world_size=4), "evaluation")
    assert line.origin == "projected"
    assert line.how == (
        "40 x 200.0 ms (eval_batch_seconds of measure); measured on 1 device, taken as the same on 4: uncalibrated"
    )


def test_more_nodes_than_piloted_are_projected() -> None:
    line = _line(_ledger(strategy="fsdp", world_size=8), "steps")
    assert (line.seconds, line.origin) == (pytest.approx(600.0), "projected")
    assert line.how == (
        "1000 x 600.0 ms (fsdp_step_seconds of pilot on 4 devices), projected to 8: "
        "uncalibrated, no network cost measured"
    )


@pytest.mark.parametrize(
    ("strategy", "world_size", "how"),
    [
        ("ddp", 4, "not known: no ddp_step_seconds of pilot"),
        ("fsdp", 2, "not known: pilot ran fsdp on 4 devices, the run wants 2"),
        ("fsdp", 6, "not known: pilot ran fsdp on 4 devices, the run wants 6"),
    ],
    ids=["strategy not piloted", "fewer devices", "no whole number of nodes"],
)
def test_steps_that_nobody_measured_are_not_guessed(strategy: str, world_size: int, how: str) -> None:
    ledger = _ledger(strategy=strategy, world_size=world_size)
    line = _line(ledger, "steps")
    assert (line.seconds, line.origin, line.how) == (None, "not run", how)
    assert (ledger.total_seconds, ledger.step_total_seconds, ledger.goodput) == (None, None, None)
    assert "steps" in ledger.unknown


def test_unknown_parts_are_named_and_left_out_of_the_total() -> None:
    ledger = _ledger({"measure": RECORDS["measure"]}, given=Given(copy_out_seconds=30.0))
    assert ledger.unknown == [
        "download",
        "process start",
        "model load",
        "first batch",
        "checkpoint saves",
        "one restart",
    ]
    assert ledger.total_seconds == pytest.approx(3 + 500 + 8 + 30)
    assert _line(ledger, "download").how == "not known: give budget.download_seconds=<seconds>"
    assert _line(ledger, "one restart").how == ("not known: no restart_seconds of restore or restart_seconds of prove")


def test_warm_up_never_gives_time_back() -> None:
    quick = _record("measure", step_seconds=0.5, warmup_seconds=1.0, num_warmup_steps=3)
    assert _line(_ledger({"measure": quick}), "warm-up").seconds == 0.0


def test_details_are_plain_data() -> None:
    assert _ledger().to_details()[0] == {
        "part": "download",
        "seconds": 60.0,
        "count": 1,
        "each_seconds": 60.0,
        "origin": "given",
        "how": "budget.download_seconds",
        "source_run_id": None,
        "included_in": None,
        "samples": None,
        "p95_seconds": None,
        "spread": None,
    }


def test_the_mean_of_the_steps_counts_with_its_spread() -> None:
    steps = [0.5, 0.5, 0.5, 0.9]
    details = {"strategies": {"fsdp": {"status": "ok", "steps": steps}}}
    pilot = _record("pilot", world_size=4, fsdp_step_seconds=0.5, fsdp_step_spread=0.33, fsdp_step_p95_seconds=0.84)
    pilot.details = details
    line = _line(_ledger({**RECORDS, "pilot": pilot}, strategy="fsdp", world_size=4), "steps")
    assert line.each_seconds == pytest.approx(0.6)
    assert (line.samples, line.p95_seconds, line.spread) == (4, 0.84, 0.33)
    assert line.how == "1000 x 600.0 ms (mean of 4 fsdp steps of pilot on 4 devices)"


def test_spread_and_percentile_follow_from_the_steps_where_no_metric_has_them() -> None:
    measure = _record("measure", step_seconds=0.5)
    measure.details = {"steps": [0.4, 0.5, 0.6]}
    line = _line(_ledger({"measure": measure}), "steps")
    assert (line.samples, line.p95_seconds, line.spread) == (3, 0.6, pytest.approx(0.2))


def test_an_estimate_stands_in_where_nothing_ran() -> None:
    estimate = _record("estimate", step_seconds=0.7)
    line = _line(_ledger({"estimate": estimate}), "steps")
    assert (line.seconds, line.origin, line.how) == (
        pytest.approx(700.0),
        "estimated",
        "1000 x 700.0 ms (step_seconds of estimate, uncalibrated)",
    )


def test_an_estimate_that_measured_runs_corrected_is_a_projection_and_says_so() -> None:
    estimate = _record("estimate", step_seconds=0.7)
    estimate.details = {"calibration": "calibrated by 3 runs, within 4 %", "step_band": 0.04}
    line = _line(_ledger({"estimate": estimate}), "steps")
    assert (line.origin, line.how) == (
        "projected",
        "1000 x 700.0 ms (step_seconds of estimate, calibrated by 3 runs, within 4 %)",
    )


def test_communication_is_what_devices_take_longer_together() -> None:
    pilot = _record("pilot", world_size=4, fsdp_step_seconds=0.6, single_step_seconds=0.45)
    line = _line(_ledger({**RECORDS, "pilot": pilot}, strategy="fsdp", world_size=4), "exposed communication")
    assert (line.seconds, line.included_in) == (pytest.approx(150.0), "steps")
    pilot.metrics["fsdp_exposed_comm_seconds"] = 0.2
    line = _line(_ledger({**RECORDS, "pilot": pilot}, strategy="fsdp", world_size=4), "exposed communication")
    assert line.seconds == pytest.approx(200.0)


def test_what_was_really_timed_is_measured() -> None:
    given = Given(download_seconds=5.0, export_seconds=7.0, measured={"download_seconds": "1 GiB read"})
    ledger = _ledger(given=given)
    assert (_line(ledger, "download").origin, _line(ledger, "download").how) == ("measured", "1 GiB read")
    assert (_line(ledger, "export").origin, _line(ledger, "export").seconds) == ("given", 7.0)
    assert _line(ledger, "copy-out").origin == "not run"
