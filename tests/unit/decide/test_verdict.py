"""The verdict over all the evidence: which way each record weighs, and what is said about it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pilotkit.decide.evidence import spread_of
from pilotkit.decide.reservation import ReservationOutcome
from pilotkit.decide.verdict import Missing, Verdict, decide_verdict, stage_command
from pilotkit.records.record import Failure, Record
from pilotkit.units import GIB


def _outcome(name: str, days: float, probability: float) -> ReservationOutcome:
    """A run of 100 hours, 110 with its buffer."""
    available = days * 24
    return ReservationOutcome(
        name, days, available, probability, 0.9, 100.0, 110.0, available - 110.0, 10.0, probability >= 0.9
    )


WEEK, DAY, MONTH = _outcome("7d", 7, 0.97), _outcome("1d", 1, 0.0), _outcome("30d", 30, 1.0)
LEDGER = [
    {"part": "steps", "seconds": 350_000.0, "origin": "measured", "how": "counted", "included_in": None},
    {"part": "copy-out", "seconds": None, "origin": "not run", "how": "not known", "included_in": None},
]


def _record(stage: str, metrics: dict[str, float] | None = None, **more: Any) -> Record:
    defaults: dict[str, Any] = {"status": "ok", "lock_digest": "digest"}
    return Record(f"{stage}-1", stage, started_at="2026-03-01", metrics=metrics or {}, **{**defaults, **more})


def _good() -> dict[str, Record]:
    card = [{"item": "load", "verdict": "PASS", "note": ""}, {"item": "restore", "verdict": "PASS", "note": ""}]
    measured = {
        "step_seconds": 0.5, "step_spread": 0.02, "peak_allocated_bytes": 1.0 * GIB, "memory_limit_bytes": 4.0 * GIB,
    }  # fmt: skip
    piloted = {
        "world_size": 2.0,
        "ddp_tokens_per_second": 3000.0,
        "ddp_scaling_efficiency": 0.9,
        "ddp_step_spread": 0.03,
    }
    strategies = {"ddp": {"status": "ok", "note": ""}, "fsdp": {"status": "failed", "note": "no such operator"}}
    return {
        "lock": _record("lock", {"num_distributions": 80}),
        "prove": _record("prove", details={"card": card}),
        "measure": _record("measure", measured),
        "pilot": _record(
            "pilot", piloted, details={"strategies": strategies, "recommendation": {"strategy": "ddp", "reason": ""}}
        ),
        "restore": _record("restore", {"num_steps": 3, "max_loss_difference": 0.0}),
        "budget": _record("budget", {"total_seconds": 360_000.0, "goodput": 0.97}, details={"ledger": LEDGER}),
    }


def _decide(records: dict[str, Record], **changed: Any) -> Verdict:
    reservations: list[ReservationOutcome] = changed.pop("reservations", [WEEK])
    chosen = {"hardware": "cpu", "precision": "fp32", "activation_checkpointing": "none", **changed}
    return decide_verdict(records, reservations=reservations, **chosen)


def test_go_says_every_number_and_run_id() -> None:
    verdict = _decide(_good(), strategy="ddp")
    assert verdict.verdict == "GO"
    assert verdict.missing == []
    assert verdict.reasons == [
        "Within 7d the run is done with a probability of 97 % (target 90 %): it takes 4 d 4 h in the median "
        "and 4 d 14 h with the buffer for that target, which leaves 2 d 10 h (projected, budget budget-1).",
        "The whole run takes 4 d 4 h (projected from measured parts), 97.0 % of it in optimizer steps "
        "(budget budget-1).",
        "ddp runs on 2 devices at 3 k tokens/s (measured), 90 % of 2 times one device (pilot pilot-1).",
        "A step on one device takes 500.0 ms (measured, spread 2.0 %) and peaks at 1.00 GiB of 4.00 GiB, 25 % "
        "(measured) (measure measure-1).",
        "A run that was stopped continues in a new process; the loss differs by 0 at most over 3 steps (measured) "
        "(restore restore-1).",
        "One complete step works on one device: 2 of 2 checks passed (prove prove-1).",
        "Everything is pinned, 80 installed distributions among it (lock lock-1).",
        "Not known and not in that total: copy-out (budget budget-1).",
    ]
    assert verdict.evidence == {stage: f"{stage}-1" for stage in _good()}


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"largest_peak_bytes": 1.5}, "1.50 GiB"),
        ({"largest_peak_bytes": 1.5, "device_own_bytes": 2.0}, "2.00 GiB"),
        # Evaluation took more of the device than a step.
        ({"largest_peak_bytes": 2.5, "device_own_bytes": 2.0, "largest_own_bytes": 3.0}, "3.00 GiB"),
    ],
)
def test_what_all_phases_took_of_the_device_is_its_peak(sizes: dict[str, float], said: str) -> None:
    records = _good()
    records["measure"].metrics.update({name: size * GIB for name, size in sizes.items()})
    assert any(f"peaks at {said} of 4.00 GiB" in reason for reason in _decide(records).reasons)


@pytest.mark.parametrize(
    ("stage", "change", "reason"),
    [
        (
            "prove",
            {"status": "failed", "problem": Failure("the loss is not finite")},
            "One complete step was not proved: the loss is not finite (prove prove-1).",
        ),
        (
            "prove",
            {"details": {"card": [{"item": "restore", "verdict": "FAIL", "note": ""}]}},
            "One complete step was not proved: restore failed (prove prove-1).",
        ),
        (
            "measure",
            {
                "status": "does_not_fit",
                "metrics": {"requested_bytes": 1.0 * GIB, "memory_limit_bytes": 4.0 * GIB},
                "problem": Failure("out of memory in backward: the limit is 4.00 GiB"),
            },
            "The run does not fit into memory (1.00 GiB asked for): out of memory in backward: the limit is 4.00 GiB "
            "(measure measure-1).",
        ),
        (
            "measure",
            {"status": "failed", "problem": Failure("rank 0 raised ValueError.")},
            "The step could not be measured: rank 0 raised ValueError (measure measure-1).",
        ),
        (
            "pilot",
            {
                "status": "failed",
                "details": {"strategies": {"ddp": {"status": "timed_out", "note": "over 1 h"}}},
                "problem": Failure("nothing finished"),
            },
            "No strategy of the pilot worked (ddp: timed out, over 1 h): nothing finished (pilot pilot-1).",
        ),
        (
            "pilot",
            {"details": {"strategies": {"ddp": {"status": "failed", "note": "no gloo"}}}},
            "No strategy of the pilot worked (ddp: failed, no gloo) (pilot pilot-1).",
        ),
        (
            "restore",
            {"status": "mismatch", "problem": Failure("the loss differs by 0.1")},
            "Training did not continue as if it had never stopped: the loss differs by 0.1 (restore restore-1).",
        ),
        (
            "restore",
            {"details": {"comparison": [{"component": "optimizer", "verdict": "FAIL", "note": ""}]}},
            "Training did not continue as if it had never stopped: optimizer differ (restore restore-1).",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_a_fault_is_no_go(stage: str, change: dict[str, Any], reason: str) -> None:
    records = _good()
    for name, value in change.items():
        setattr(records[stage], name, value)
    verdict = _decide(records)
    assert (verdict.verdict, verdict.reasons) == ("NO-GO", [reason])


def test_the_intended_strategy_counts() -> None:
    verdict = _decide(_good(), strategy="fsdp")
    assert (verdict.verdict, verdict.reasons) == (
        "NO-GO",
        ["The intended strategy fsdp did not work (failed, no such operator); ddp did (pilot pilot-1)."],
    )
    verdict = _decide(_good(), strategy="hsdp")
    assert verdict.verdict == "INCOMPLETE"
    assert verdict.missing == [
        Missing(
            "pilot: the intended strategy hsdp was not among those that ran (pilot pilot-1)", "pilotkit stage=pilot"
        )
    ]


def test_a_strategy_that_ran_out_of_time_says_nothing() -> None:
    records = _good()
    records["pilot"].details["strategies"]["fsdp"] = {"status": "timed_out", "note": ""}
    assert _decide(records, strategy="fsdp").verdict == "INCOMPLETE"
    records["pilot"].details["strategies"]["ddp"] = {"status": "failed", "note": "no gloo"}
    records["pilot"].status = "timed_out"
    assert _decide(records, strategy="fsdp").reasons == [
        "No strategy of the pilot worked (ddp: failed, no gloo; fsdp: timed out): it left no reason (pilot pilot-1)."
    ]


def test_what_a_card_left_out_is_said() -> None:
    records = _good()
    records["restore"].details = {"comparison": [{"component": "continuation", "verdict": "NOT RUN", "note": ""}]}
    assert "Not run by restore: continuation (restore restore-1)." in _decide(records).reasons


def test_one_device_needs_no_pilot() -> None:
    records = _good()
    del records["pilot"]
    assert _decide(records, strategy="single").verdict == "GO"
    assert _decide(records).verdict == "INCOMPLETE"


def test_no_reservation_long_enough_is_no_go() -> None:
    verdict = _decide(_good(), reservations=[DAY])
    assert verdict.verdict == "NO-GO"
    assert verdict.reasons == [
        "No reservation is long enough: within 1d, the longest, the run is done with a probability of under 1 % "
        "(target 90 %); it takes 4 d 4 h in the median and 4 d 14 h with the buffer for that target "
        "(projected, budget budget-1)."
    ]


def test_a_short_reservation_is_good_for_qualifying() -> None:
    verdict = _decide(_good(), reservations=[_outcome("7d", 7, 0.42), MONTH], chosen_reservation="7d")
    assert (verdict.verdict, verdict.reasons) == (
        "NO-GO",
        [
            "Within 7d the run is done with a probability of 42 % (target 90 %); it takes 4 d 4 h in the median "
            "and 4 d 14 h with the buffer for that target, and reservation=30d would hold it with over 99 %. 7d is "
            "good for qualifying and profiling (projected, budget budget-1)."
        ],
    )


def test_a_run_that_never_ends_says_so() -> None:
    endless = ReservationOutcome("30d", 30, 720.0, 0.0, 0.9, None, None, None, None, False)
    assert "it is interrupted so often that it never ends" in _decide(_good(), reservations=[endless]).reasons[0]


def test_the_shortest_reservation_that_fits_is_named() -> None:
    assert "Within 7d" in _decide(_good(), reservations=[MONTH, DAY, WEEK]).reasons[0]


def test_without_reservations_nothing_is_decided() -> None:
    verdict = _decide(_good(), reservations=[])
    assert verdict.missing == [
        Missing(
            "reservation: no time to finish is known to compare one with",
            "pilotkit stage=plan 'plan.reservations=[7d]'",
        )
    ]


@pytest.mark.parametrize("stage", ["lock", "prove", "measure", "pilot", "restore", "budget"])
def test_absent_evidence_is_incomplete(stage: str) -> None:
    records = _good()
    del records[stage]
    verdict = _decide(records, overrides=["stage=all", "name=a b"])
    assert verdict.verdict == "INCOMPLETE"
    assert verdict.missing == [Missing(f"{stage}: not run", f"pilotkit stage={stage} 'name=a b'")]
    assert verdict.reasons[0] == "1 piece of evidence is missing; nothing found so far speaks against the run."


@pytest.mark.parametrize("status", ["refused", "preempted", "timed_out", "cancelled", "running"])
@pytest.mark.parametrize("stage", ["prove", "measure", "pilot", "restore"])
def test_what_did_not_finish_is_missing_not_against(stage: str, status: str) -> None:
    records = _good()
    records[stage].status = status
    records[stage].problem = Failure("no device named H100")
    words = status.replace("_", " ")
    verdict = _decide(records)
    assert verdict.verdict == "INCOMPLETE"
    assert verdict.missing[0].what == f"{stage}: {words} ({stage} {stage}-1): no device named H100."


def test_a_fault_outweighs_what_is_missing() -> None:
    records = _good()
    records["prove"].status = "failed"
    del records["restore"]
    verdict = _decide(records)
    assert verdict.verdict == "NO-GO"
    assert [item.what for item in verdict.missing] == ["restore: not run"]


def test_drifted_records_are_void_even_when_they_failed() -> None:
    records = _good()
    records["prove"].lock_digest = "older"
    records["prove"].status = "failed"
    records["measure"].lock_digest = None
    verdict = _decide(records)
    assert verdict.verdict == "INCOMPLETE"
    assert [item.what for item in verdict.missing] == [
        "prove: drifted since prove-1, the newest lock is lock-1",
        "measure: not pinned, measure-1 was made without a lock",
    ]
    assert "prove" not in verdict.evidence


def test_a_chapter_that_is_built_has_a_command() -> None:
    records = _good()
    del records["measure"]
    missing = {item.what: item.command for item in _decide(records, hardware="h100", built=["estimate"]).missing}
    assert missing["estimate: nothing was measured or estimated on h100"] == "pilotkit stage=estimate"


ACCEPTED = {"name": "bf16_mixed", "verdict": "accept", "reasons": ["the loss is 0.001 off."]}
REJECTED = {"name": "bf16_mixed", "verdict": "reject", "reasons": ["the loss is 3 off."]}
UNSURE = {"name": "bf16_mixed", "verdict": "undecided", "reasons": ["fp32 learnt nothing."]}
SAVES = {"mode": "full", "status": "ok", "note": "full saves 1.00 GiB; computes the same", "differs": ""}
DIFFERS = {"mode": "full", "status": "ok", "note": "full saves 1.00 GiB; its losses differ", "differs": "losses"}


@pytest.mark.parametrize(
    ("changed", "details", "expected", "words"),
    [
        ({"precision": "bf16_mixed"}, None, "INCOMPLETE", "numerics: not run"),
        ({"precision": "bf16_mixed"}, {"precision": ACCEPTED}, "GO", "precision=bf16_mixed is accepted: the loss is 0"),
        ({"precision": "bf16_mixed"}, {"precision": REJECTED}, "NO-GO", "precision=bf16_mixed is rejected: the loss"),
        ({"precision": "bf16_mixed"}, {"precision": UNSURE}, "INCOMPLETE", "numerics: precision=bf16_mixed is undecid"),
        ({"activation_checkpointing": "full"}, {"recomputation": [SAVES]}, "GO", "full saves 1.00 GiB"),
        ({"activation_checkpointing": "full"}, {"recomputation": [DIFFERS]}, "NO-GO", "Recomputation changes the tra"),
        ({"activation_checkpointing": "full"}, {"recomputation": []}, "INCOMPLETE", "full was not compared with none"),
    ],
    ids=["not run", "accepted", "rejected", "undecided", "saves", "differs", "not compared"],
)
def test_precision_and_recomputation_rest_on_numerics(
    changed: dict[str, str], details: dict[str, Any] | None, expected: str, words: str
) -> None:
    records = _good()
    if details is not None:
        records["numerics"] = _record("numerics", details=details)
    verdict = _decide(records, **changed)
    assert verdict.verdict == expected
    assert words in " ".join([*verdict.reasons, *(item.what for item in verdict.missing)])


def test_an_estimate_is_wanted_where_nothing_was_measured() -> None:
    records = _good()
    records["measure"].status = "refused"
    what = [item.what for item in _decide(records, hardware="h100").missing]
    assert "estimate: nothing was measured on h100, and estimates are not built in this version" in what


def test_a_projected_step_time_is_not_evidence_enough() -> None:
    records = _good()
    how = "10 x 1.00 s, projected to 16: uncalibrated, no network cost measured"
    records["budget"].details = {"ledger": [{**LEDGER[0], "origin": "projected", "how": how}]}
    assert _decide(records).missing == [
        Missing(f"budget: the step time is only projected ({how}; budget budget-1)", "pilotkit stage=budget")
    ]


def test_warnings_stand_beside_the_figures() -> None:
    records = _good()
    records["measure"].details = {"warnings": ["the step time is unsteady"]}
    assert "the step time is unsteady (measure measure-1)." in _decide(records).reasons


def test_plain_data_and_back() -> None:
    verdict = _decide({})
    assert Verdict.from_dict(json.loads(json.dumps(verdict.to_dict()))) == verdict
    assert set(verdict.to_dict()) == {"verdict", "reasons", "missing", "evidence", "cautions"}


def test_command_of_a_stage() -> None:
    assert stage_command("prove") == "pilotkit stage=prove"
    assert stage_command("prove", overrides=["stage=all", "a.b=[1, 2]"]) == "pilotkit stage=prove 'a.b=[1, 2]'"


@pytest.mark.parametrize(("strategy", "spread"), [("single", 0.02), ("ddp", 0.03), ("hsdp", None)])
def test_spread_of_the_intended_steps(strategy: str, spread: float | None) -> None:
    assert spread_of(_good(), strategy=strategy) == spread
    assert spread_of({}, strategy=strategy) is None


def test_what_drifted_is_named_where_evidence_is_void() -> None:
    records = _good()
    records["measure"].lock_digest = "another"
    drift = {"field": "packages.numpy", "was": "2.0", "now": "2.1", "voids": ["numerics"], "reason": ""}
    records["measure"].provenance = {"gate": {"against": "lock lock-1", "drift": [drift]}}
    what = "measure: drifted since measure-1, the newest lock is lock-1 (packages.numpy)"
    assert [item.what for item in _decide(records).missing] == [what]


def test_nothing_counts_when_what_is_here_is_not_what_was_locked() -> None:
    verdict = _decide(_good(), drift="1 field drifted from lock lock-1: git.tree: a -> b", overrides=["name=x"])
    assert verdict.verdict == "INCOMPLETE"
    assert verdict.missing == [
        Missing(
            "lock: 1 field drifted from lock lock-1: git.tree: a -> b; lock and measure again",
            "pilotkit stage=all name=x",
        )
    ]


def test_another_hardware_needs_a_qualified_set() -> None:
    (missing,) = _decide(_good(), hardware="h100").missing
    assert missing == Missing("qualify: not run", "pilotkit stage=qualify")
    card = [{"check": "operator", "subject": "aten::mm", "verdict": "PASS", "note": ""}] * 3
    card.append({"check": "operator", "subject": "aten::empty", "verdict": "NOT RUN", "note": ""})
    records = {**_good(), "qualify": _record("qualify", details={"card": card, "set_digest": "ab" * 32})}
    verdict = _decide(records, hardware="h100")
    assert verdict.verdict == "GO"
    assert "The software stack is qualified as one set (abababababab): 3 checks passed (qualify qualify-1)." in (
        verdict.reasons
    )
    assert "Not compared by qualify: 1 of 4 checks (qualify qualify-1)." in verdict.reasons


@pytest.mark.parametrize("hardware", ["cpu", "h100"])
def test_a_set_that_is_not_qualified_is_no_go(hardware: str) -> None:
    bad = _record("qualify", status="mismatch", problem=Failure("not qualified: kernel a::b: is gone"))
    verdict = _decide({**_good(), "qualify": bad}, hardware=hardware)
    assert (verdict.verdict, verdict.reasons) == (
        "NO-GO",
        ["The software stack was tried as one set: not qualified: kernel a::b: is gone (qualify qualify-1)."],
    )


def test_two_measurements_of_one_step_that_disagree_are_told() -> None:
    records = _good()
    records["measure"].metrics["step_seconds"] = 0.02
    records["pilot"].metrics["single_step_seconds"] = 0.03
    (told,) = [reason for reason in _decide(records).reasons if "not equally free" in reason]
    assert told.startswith("One device takes 20.0 ms a step in measure and 30.0 ms in pilot: ")
    records["pilot"].metrics["single_step_seconds"] = 0.024
    assert not any("not equally free" in reason for reason in _decide(records).reasons)


def test_more_than_twice_the_speed_on_two_devices_is_no_evidence() -> None:
    records = _good()
    records["pilot"].metrics["ddp_scaling_efficiency"] = 1.97
    verdict = _decide(records)
    assert verdict.verdict == "INCOMPLETE"
    (missing,) = verdict.missing
    assert missing.what.startswith("pilot: ddp on 2 devices makes 197 % of 2 times one device, which cannot be: ")


def test_more_devices_that_are_slower_than_one_are_a_caution_and_no_fault() -> None:
    records = _good()
    assert _decide(records).cautions == []
    records["pilot"].metrics["ddp_scaling_efficiency"] = 0.12
    verdict = _decide(records)
    assert verdict.verdict == "GO"
    assert verdict.cautions == [
        "Slower than one device: 2 devices with ddp do 0.24 times the work of one (measured) (pilot pilot-1)."
    ]


def test_a_measurement_without_a_step_time_is_no_evidence() -> None:
    records = _good()
    del records["measure"].metrics["step_seconds"]
    verdict = _decide(records)
    assert (verdict.verdict, verdict.missing[0].what) == (
        "INCOMPLETE",
        "measure: no step time is in the record (measure measure-1)",
    )
