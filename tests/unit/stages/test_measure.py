"""Stage `measure`: the worker's numbers with their origins, or why there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pilotkit.launch.outcome import Outcome
from pilotkit.records.record import Failure
from pilotkit.stages import measure
from pilotkit.stages.run import Run

RESULT = {
    "metrics": {
        "step_seconds": 0.25,
        "step_mean_seconds": 0.25,
        "step_spread": 0.5,
        "num_measured_steps": 3,
        "data_wait_seconds": 0.05,
        # 1 batch in 0.2 s of work: 5 a second are needed
        "loader_batches_per_second": 5.0,
        "memory_limit_bytes": 1024,
    },
    "memory": {"deciding_phase": "steps", "eval_grows": False},
    "time": {"settled": True, "recompilations": [], "compile_limits": []},
    "steps": [0.2, 0.25, 0.3],
    "device": "two cores",
}


def test_numbers_and_their_doubts(make_run: Callable[..., Run], workers: Any, said: Callable[[Run], list[str]]) -> None:
    workers.outcomes["measure"] = Outcome("ok", 1.0, result=RESULT)
    run = make_run("measure")
    found = measure.run(run)
    warnings = [
        "the step time is unsteady: its spread is 50.0 %, over the limit of 10.0 %",
        "only 3 steps were counted",
    ]
    assert found.status == "ok"
    assert found.metrics.values == RESULT["metrics"]
    assert found.metrics.origins["memory_limit_bytes"] == "given"
    assert found.details["warnings"] == warnings
    assert found.details["device"] == {"name": "two cores", "visible": 2}
    assert found.details["threads"]["num_threads"] == 2
    assert said(run)[1:] == [f"  note: {warning}" for warning in warnings]
    assert workers.calls == [("measure", 1, False)]


def test_rows_that_are_shorter_and_an_allocator_at_odds_with_itself(make_run: Callable[..., Run], workers: Any) -> None:
    lengths = {
        "full_rows_share": 0.25,
        "num_rows": 200,
        "num_rows_looked_at": 200,
        "mean_row_tokens": 70.0,
        "longest_row_tokens": 128,
    }
    settings = "expandable_segments:True,max_split_size_mb:128"
    memory = {"deciding_phase": "steps", "eval_grows": True, "allocator_settings": settings}
    evaluation = {"eval_growth_bytes": 2048, "evaluation_peak_bytes": 4096}
    metrics = {**RESULT["metrics"], **lengths, **evaluation, "step_spread": 0.0, "num_measured_steps": 10}
    workers.outcomes["measure"] = Outcome("ok", 1.0, result={**RESULT, "metrics": metrics, "memory": memory})
    assert measure.run(make_run("measure")).details["warnings"] == [
        "25 % of 200 rows reach train.seq_len = 128 (mean 70 tokens, longest 128): tokens per second count the padding "
        "up to it",
        "the memory of evaluation grows by 2.00 KiB with every batch: something keeps its results; with the 8 of "
        "train.num_eval_batches it comes to 20.00 KiB (projected)",
        f"the allocator was started with {settings}: max_split_size_mb is made for segments that do not expand, and "
        "both together have let reserved memory grow; drop max_split_size_mb",
    ]


@pytest.mark.parametrize(
    ("looked_at", "rows", "end"),
    [
        (200, "200 rows", "no row is that long, lower train.seq_len or look at the data"),
        (
            100,
            "100 rows looked at (of 200)",
            "none of these is that long, and the memory of a longer one was not measured: give the look more time "
            "(measure.loader_seconds), or lower train.seq_len if there is none",
        ),
    ],
)
def test_no_row_is_called_full_that_was_not_seen(
    make_run: Callable[..., Run], workers: Any, looked_at: int, rows: str, end: str
) -> None:
    lengths = {"full_rows_share": 0.0, "num_rows": 200, "mean_row_tokens": 70.0, "longest_row_tokens": 100}
    metrics = {**RESULT["metrics"], **lengths, "num_rows_looked_at": looked_at, "step_spread": 0.0}
    workers.outcomes["measure"] = Outcome("ok", 1.0, result={**RESULT, "metrics": metrics})
    assert measure.run(make_run("measure")).details["warnings"][1:] == [
        f"0 % of {rows} reach train.seq_len = 128 (mean 70 tokens, longest 100): tokens per second count the "
        f"padding up to it; {end}",
    ]


@pytest.mark.parametrize(("share", "told"), [(0.7, True), (0.05, False)])
def test_a_loader_that_comes_in_bursts_is_told(
    make_run: Callable[..., Run], workers: Any, share: float, told: bool
) -> None:
    """Case R86: on average it is fast enough."""
    waits = {"data_wait_share": share, "data_wait_p50_seconds": 0.001, "data_wait_p99_seconds": 0.7}
    metrics = {**RESULT["metrics"], **waits, "step_spread": 0.0, "num_measured_steps": 10}
    workers.outcomes["measure"] = Outcome("ok", 1.0, result={**RESULT, "metrics": metrics})
    text = (
        "70 % of a step is spent waiting for data, though the loader delivers 5 batches a second by itself (a wait is "
        "1.0 ms at the median, 700.0 ms at the 99th percentile): raise data.num_workers or data.prefetch_factor"
    )
    assert measure.run(make_run("measure")).details["warnings"] == [text] * told


def test_steps_that_the_scaler_skipped_are_told(make_run: Callable[..., Run], workers: Any) -> None:
    """Case R55: a skipped step takes no optimizer step, and less time."""
    metrics = {**RESULT["metrics"], "num_skipped_steps": 2, "step_spread": 0.0, "num_measured_steps": 10}
    workers.outcomes["measure"] = Outcome("ok", 1.0, result={**RESULT, "metrics": metrics})
    assert measure.run(make_run("measure")).details["warnings"] == [
        "the loss scaler skipped 2 of 10 counted steps for an overflow: their optimizer did nothing"
    ]


def test_what_the_long_run_meets_and_counted_steps_do_not(make_run: Callable[..., Run], workers: Any) -> None:
    metrics = {**RESULT["metrics"], "step_spread": 0.0, "num_measured_steps": 10}
    unreached = {"num_steps": 9, "parameters": {"extra.bias": 9}}
    result = {**RESULT, "metrics": metrics, "unreached": unreached, "rows_differ": True}
    workers.outcomes["measure"] = Outcome("ok", 1.0, result=result)
    warnings = measure.run(make_run("measure", {"train.compile": True})).details["warnings"]
    assert [text.partition(":")[0] for text in warnings] == [
        "no gradient reached extra.bias in any of 9 steps",
        "the rows differ in length and train.compile is on",
    ]


def test_a_run_that_does_not_fit(make_run: Callable[..., Run], workers: Any) -> None:
    workers.outcomes["measure"] = Outcome(
        "does_not_fit", 1.0, failure=Failure("out of memory in a step"), out_of_memory={"requested_bytes": 2048}
    )
    found = measure.run(make_run("measure"))
    assert (found.status, found.metrics.values["requested_bytes"]) == ("does_not_fit", 2048)
