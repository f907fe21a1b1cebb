"""Traces of a user's script compared: what is judged, what is only told, and what is named first."""

from __future__ import annotations

import copy

import pytest

from pilotkit.decide.script_continuation import compare_scripts

COMPONENTS = ("counters", "scheduler", "scaler", "parameters", "optimizer", "random states")


def event(kind, step):
    state = {name: {"part": f"{name} {step}"} for name in COMPONENTS}
    return {"event": kind, "step": step, "loss": 1.0 / step, "batches": [f"batch {step}"], "state": state}


@pytest.fixture
def traces():
    """Two ranks, saved after two steps, killed after three."""
    whole = [event("step", step) for step in (1, 2, 3, 4)]
    resumed = [{**event("resumed", 2), "loss": None, "batches": []}, *whole[2:]]
    return [{rank: copy.deepcopy(events) for rank in ("0", "1")} for events in (whole, whole[:3], resumed)]


def compare(traces, *, rtol=0.0, left_out=()):
    rows = compare_scripts(*traces, num_steps=2, rtol=rtol, left_out=left_out)
    return {row["component"]: (row["verdict"], row["note"]) for row in rows}


def failed(rows):
    return [component for component, (verdict, _) in rows.items() if verdict == "FAIL"]


def test_one_that_came_back(traces):
    rows = compare(traces)
    assert {verdict for verdict, _ in rows.values()} == {"PASS"}
    assert rows["parameters restored"] == ("PASS", "2 parts, bit for bit")
    assert rows["losses after the restore"] == ("PASS", "4 values, bit for bit")


@pytest.mark.parametrize("component", COMPONENTS)
def test_what_one_rank_lost_is_named(component, traces):
    traces[2]["1"][0]["state"][component]["part"] = "another"
    rows = compare(traces)
    assert failed(rows) == [f"{component} restored"]
    assert rows[f"{component} restored"][1] == "1 of 2 parts differ, first rank 1 part"
    assert failed(compare(traces, left_out=[component])) == []


def test_runs_that_differ_by_themselves_say_nothing_about_a_restore(traces):
    traces[1]["0"][1]["state"]["parameters"]["part"] = "another"
    rows = compare(traces)
    assert failed(rows) == ["two identical runs"]
    assert "at step 2 first in parameters (rank 0 part)" in rows["two identical runs"][1]


def test_a_rank_that_went_on_elsewhere(traces):
    traces[2]["1"][0]["step"] = 0
    rows = compare(traces)
    assert "resumed after kill -9" in failed(rows)
    assert rows["resumed after kill -9"][1] == "not where it was saved: rank 0 at 2, rank 1 at 0, saved at 2"


def test_a_batch_that_was_read_twice(traces):
    traces[2]["0"][1]["batches"] = ["batch 2"]
    rows = compare(traces)
    assert failed(rows) == ["batches after the restore"]
    assert rows["batches after the restore"][1] == "rank 0: other ones at step 3"


def test_a_step_that_is_missing_at_the_end(traces):
    for events in traces[2].values():
        events.pop()
    assert failed(compare(traces))[0] == "step numbers after the restore"


def test_a_tolerance_is_for_losses_and_what_rounding_reaches(traces):
    for rank in ("0", "1"):
        last = traces[2][rank][-1]
        last["loss"] *= 1 + 1e-6
        last["state"]["parameters"]["part"] = "rounded"
    assert failed(compare(traces)) == ["losses after the restore", "parameters at the end"]
    rows = compare(traces, rtol=1e-5)
    assert failed(rows) == []
    assert rows["parameters at the end"][0] == "NOT RUN"
    for rank in ("0", "1"):
        traces[2][rank][-1]["state"]["scheduler"]["part"] = "another"
    assert failed(compare(traces, rtol=1e-5)) == ["scheduler at the end"]
    assert failed(compare(traces, rtol=1e-7))[0] == "losses after the restore"


def test_what_a_script_did_not_tell_is_not_run(traces):
    for start in traces:
        for events in start.values():
            for one in events:
                one["loss"], one["batches"] = None, []
    rows = compare(traces)
    assert rows["losses after the restore"][0] == "NOT RUN"
    assert rows["batches after the restore"][0] == "NOT RUN"
    assert failed(rows) == []
