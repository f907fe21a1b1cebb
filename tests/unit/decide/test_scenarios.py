"""Scenarios on paper: what the plan has to say, each number computed by hand beside it.

No failures and no drift unless a scenario is about them, so that a probability is 0, 1 or the value of a normal
distribution. A study's pilots run on 8 devices; `days` is how long all steps take there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import pytest

from pilotkit.decide.cost import Prices
from pilotkit.decide.failures import FailureModel
from pilotkit.decide.planning import Plan, Question, make_plan
from pilotkit.decide.study import Candidate
from pilotkit.decide.verdict import decide_verdict
from pilotkit.decide.workload import Assumptions
from pilotkit.records.record import Record
from pilotkit.units import GIB

MakePilot = Callable[..., Candidate]
SURE = Assumptions(FailureModel("none", 0.0), drift_spread=0.0, repair_seconds=0.0, num_draws=10_000)
WEEK_AND_MONTH = {"7d": 7.0, "30d": 30.0}
PRICES = Prices(
    per_gpu_hour={"a100": 1.5, "h100": 3.0, "h200": 3.5, "mi300x": 1.0}, egress_per_gb=0.0, as_of="2026-03-01"
)


def _plan(*candidates: Candidate, assumptions: Assumptions = SURE, **changed: Any) -> Plan:
    values = {"reservations": WEEK_AND_MONTH, "prices": PRICES, "max_devices": 64, **changed}
    return make_plan(candidates, question=Question(assumptions=assumptions, **values))


def _decisions(plan: Plan) -> dict[str, str]:
    return {item.option.hardware: item.decision for item in plan.choice.judged}


def _reason(plan: Plan, hardware: str) -> str:
    return next(item.reason for item in plan.choice.judged if item.option.hardware == hardware)


def _verdict(plan: Plan, candidate: Candidate, **changed: Any) -> Any:
    return decide_verdict(
        candidate.records,
        hardware="cpu",
        precision="fp32",
        activation_checkpointing="none",
        reservations=plan.outcomes,
        strategy=candidate.strategy,
        **changed,
    )


def test_1_fits_only_on_h200(pilot: MakePilot) -> None:
    plan = _plan(
        pilot(hardware="a100", fits=False, peak_gib=78),
        pilot(hardware="h100", fits=False, peak_gib=78),
        pilot(hardware="h200", peak_gib=110),
    )
    assert _decisions(plan) == {"h200": "accepted", "a100": "rejected", "h100": "rejected"}
    assert "does not fit into 79.00 GiB: 78.00 GiB were in use and it asked for more" in _reason(plan, "a100")
    assert "memory is what the others lack (a100, h100" in _reason(plan, "h200")
    # 8 devices x 168 h x 3.50
    assert "4,704.00 USD" in _reason(plan, "h200")


def test_2_fsdp_needed(pilot: MakePilot) -> None:
    plan = _plan(pilot(strategy="ddp", fits=False, peak_gib=78), pilot(strategy="fsdp", peak_gib=50))
    assert [(item.option.label.split(", ")[1], item.decision) for item in plan.choice.judged] == [
        ("fsdp", "accepted"),
        ("ddp", "rejected"),
    ]


def test_3_input_bound_at_four_devices(pilot: MakePilot) -> None:
    # A device trains 4,000 tokens in 43.2 s, 92.6 a second; loaders deliver 306, enough for 3.3 devices.
    plan = _plan(pilot(days=5.0, supply=306.0), max_devices=8)
    knee = plan.scaling["fixed batch per device"].knee
    assert (knee.num_devices, knee.cause) == (3, "input")
    four = plan.scaling["fixed batch per device"].at(4)
    assert four is not None
    # A step of 16,000 tokens then takes 52.29 s, and a minute in 100 of them goes to a save.
    assert four.tokens_per_second == pytest.approx(306.0 * 5229 / 5289, rel=1e-3)


def test_4_thirty_days_needed_at_090(pilot: MakePilot) -> None:
    # 6.5 days of steps and 100 saves of a minute: 6.569 days. The mean may be off by 10 %:
    # P(7 d) = Phi(ln((7 - 0.069) / 6.5) / 0.1) = Phi(0.643) = 0.740
    drifting = dataclasses.replace(SURE, drift_spread=0.1)
    candidate = pilot(days=6.5)
    plan = _plan(candidate, assumptions=drifting)
    week, month = plan.outcomes
    expected = NormalDist().cdf(math.log((7 - 100 / 1440) / 6.5) / 0.1)
    assert expected == pytest.approx(0.740, abs=0.001)
    assert week.probability == pytest.approx(expected, abs=0.015)
    assert (week.fits, month.fits, month.probability) == (False, True, 1.0)
    held = plan.choice.recommended.holding if plan.choice.recommended else None
    assert held is not None
    assert held.name == "30d"
    # The buffer: the 90 % quantile of the steps is 6.5 x exp(0.1 x 1.2816) = 7.389 days.
    assert month.target_hours == pytest.approx(24 * (6.5 * math.exp(0.12816) + 100 / 1440), rel=0.005)


def test_5_nothing_fits(pilot: MakePilot) -> None:
    candidate = pilot(days=60.0)
    plan = _plan(candidate)
    assert plan.choice.recommended is None
    assert "done within 30d with a probability of under 1 %" in _reason(plan, "a100")
    found = {remedy.what: remedy for remedy in plan.remedies}
    # A step is as fast on one device as on 8: 16 take 30 days and 50 saves, too much; 32 are the next doubling.
    assert found["devices"].sentence.startswith("32 devices")
    # 30 days less 100 saves of a minute, over 60 days: 49.9 %
    assert (
        "steps that take 50 % of their time (2.00 times the speed) would fit 30d"
        in found["precision or hardware"].sentence
    )
    tokens = int(found["total_tokens"].sentence.split(" tokens")[0].split()[-1].replace(",", ""))
    assert tokens == pytest.approx(0.4988e9, rel=0.001)
    assert not found["checkpoint interval"].enough


def test_6_evidence_missing(pilot: MakePilot) -> None:
    candidate = pilot(lacks=("restore",))
    plan = _plan(candidate)
    assert plan.outcomes == []
    assert _decisions(plan) == {"a100": "open"}
    assert "restore: not run; budget: not known: checkpoint saves, one restart" in _reason(plan, "a100")
    verdict = _verdict(plan, candidate, overrides=["hardware=a100"])
    assert verdict.verdict == "INCOMPLETE"
    assert "pilotkit stage=restore hardware=a100" in [item.command for item in verdict.missing]


@pytest.mark.parametrize(("qualified", "decision"), [(None, "open"), (False, "rejected"), (True, "accepted")])
def test_7_mi300x_when_its_stack_is_qualified(pilot: MakePilot, qualified: bool | None, decision: str) -> None:
    plan = _plan(
        pilot(hardware="a100"), pilot(hardware="mi300x", qualified=qualified), baseline_memory_bytes=79 * 2**30
    )
    # 8 x 168 x 1.00 = 1,344 against 8 x 168 x 1.50 = 2,016
    assert _decisions(plan)["mi300x"] == decision
    reason = _reason(plan, "mi300x")
    words = "larger memory per device (191.00 GiB against 79.00 GiB of an A100), not qualified for this application"
    why = {
        None: "; not decided, evidence is missing (qualify: not run)",
        False: ": not qualified: operator aten::mm: differs by 0.2 (qualify qualify-mi300x-fsdp)",
        True: "",
    }[qualified]
    assert (words + why in reason) is not (qualified is True)
    assert ("1,344.00 USD against 2,016.00 USD" in reason) is (qualified is True)


def test_8_h100_pays_by_fp8(pilot: MakePilot) -> None:
    # 20 days on A100 need 30 days at 8 x 720 x 1.5 = 8,640; 6 on H100 a week at 8 x 168 x 3 = 4,032.
    plan = _plan(pilot(hardware="a100", days=20.0), pilot(hardware="h100", days=6.0, precision="fp8"))
    assert _decisions(plan) == {"h100": "accepted", "a100": "rejected"}
    assert (
        "the measured fp8 pays for itself (3.33 times the tokens/s of an A100, 4,032.00 USD against 8,640.00 USD)"
        in (_reason(plan, "h100"))
    )


def test_9_h100_does_not_pay(pilot: MakePilot) -> None:
    plan = _plan(pilot(hardware="a100", days=6.0), pilot(hardware="h100", days=3.0))
    assert _decisions(plan) == {"a100": "accepted", "h100": "rejected"}
    assert "without a measured Hopper path (fp8, attention kernel) its plain speed does not pay for itself" in (
        _reason(plan, "h100")
    )


def test_10_h200_by_its_larger_micro_batch(pilot: MakePilot) -> None:
    plan = _plan(
        pilot(hardware="a100", days=9.0, micro_batch_size=2, num_steps=20_000),
        pilot(hardware="h200", days=4.0, micro_batch_size=8, num_steps=5_000),
    )
    assert _decisions(plan) == {"h200": "accepted", "a100": "rejected"}
    assert "its micro-batch of 8 against 2 pays for itself (2.25 times" in _reason(plan, "h200")


def test_11_spot_without_checkpoints_never_ends(pilot: MakePilot) -> None:
    # R87: 48.5 h, 0.15 interruptions an hour (3.6 a day on the one node), nothing saved on the way: 9,618 h.
    spot = dataclasses.replace(SURE, failures=FailureModel("spot", 3.6))
    candidate = pilot(days=48.5 / 24, checkpoint_every_steps=10_000, save_seconds=0.0, restart_seconds=0.0)
    plan = _plan(candidate, assumptions=spot)
    assert plan.outcomes[-1].probability == pytest.approx(1 - math.exp(-720 / 9618), abs=0.01)
    assert plan.choice.recommended is None
    saved = pilot(days=48.5 / 24, checkpoint_every_steps=103, save_seconds=0.0, restart_seconds=0.0)
    assert _plan(saved, assumptions=spot).chosen.finish.mean_seconds / 3600 == pytest.approx(50.4, abs=0.2)  # type: ignore[union-attr]


def test_12_minimum_count_and_the_rest_of_the_bill(pilot: MakePilot) -> None:
    # R89: 84 GB, 20 copies out at 0.09 a GB: 151.20. 16 devices have to be rented for 8.
    prices = Prices(
        per_gpu_hour={"a100": 1.5}, minimum_gpus={"a100": 16}, egress_per_gb=0.09, copies_out=20,
        storage_per_gb_month=0.02, kept_checkpoints=3, energy_per_kwh=0.2, power_usage_effectiveness=1.25,
    )  # fmt: skip
    plan = _plan(pilot(days=5.0), prices=prices)
    week = plan.chosen.option.cost_lines[0]
    assert week["devices"] == pytest.approx(16 * 168 * 1.5)
    assert week["egress"] == pytest.approx(151.20)
    assert week["storage"] == pytest.approx(84 * 3 * 0.02 * 7 / 30)
    hours = 5 * 24 + 100 / 60
    assert week["energy"] == pytest.approx(0.4 * 8 * hours * 1.25 * 0.2)
    assert "undated prices" in week["how"]


def test_13_more_devices_of_the_same(pilot: MakePilot) -> None:
    # 40 days on 8 A100 do not fit a month; 16 take 20 days and 50 saves: 16 x 720 x 1.5 = 17,280.
    plan = _plan(pilot(days=40.0), device_counts=(16, 32))
    assert [(item.option.num_devices, item.decision) for item in plan.choice.judged] == [
        (16, "accepted"), (32, "rejected"), (8, "rejected"),
    ]  # fmt: skip
    best = plan.choice.recommended
    assert best is not None
    assert best.origin == "projected"
    assert best.holding is not None
    assert best.holding.cost == pytest.approx(17_280.0)
    assert best.outcomes[-1].run_hours == pytest.approx(20 * 24 + 50 / 60, rel=1e-6)


def test_14_without_prices_gpu_hours_decide(pilot: MakePilot) -> None:
    plan = _plan(pilot(hardware="a100", days=6.0), pilot(hardware="h100", days=3.0), prices=Prices())
    assert plan.choice.quantity == "gpu_hours"
    assert _decisions(plan) == {"h100": "accepted", "a100": "rejected"}


def test_15_order_of_the_records_does_not_matter(pilot: MakePilot) -> None:
    study = [pilot(hardware="a100", days=6.0), pilot(hardware="h100", days=3.0), pilot(hardware="h200", days=3.0)]
    one, other = _plan(*study), _plan(*reversed(study))
    assert [item.option.label for item in one.choice.judged] == [item.option.label for item in other.choice.judged]


def test_16_doubling_failures_shows_in_the_table(pilot: MakePilot) -> None:
    failing = dataclasses.replace(SURE, failures=FailureModel("bad", 0.5), repair_seconds=3600.0)
    plan = _plan(pilot(days=6.5), assumptions=failing)
    rows = {row.what: row for row in plan.sensitivity}
    base, double = rows["as planned"], rows["failures twice as often"]
    assert double.probabilities["7d"] < base.probabilities["7d"]
    assert base.target_hours is not None
    assert double.target_hours is not None
    assert double.target_hours > base.target_hours
    assert rows["steps 5 % slower"].probabilities["7d"] < base.probabilities["7d"]
    # 8 x 720 h x 1.5, and a fifth less
    assert (base.cost, rows["devices 20 % cheaper"].cost) == (8640.0, 6912.0)


def _estimated(candidate: Candidate, *, speed: float, band: float | None) -> Candidate:
    """The same run on hardware that was estimated alone; `speed` is against the candidate's pilot."""
    seconds = candidate.records["pilot"].metrics["fsdp_step_seconds"] / speed
    details = {"calibration": "carried over from 3 runs on h100, within 10 %", "step_band": band}
    metrics = {
        "step_seconds": seconds, "world_size": 8.0, "peak_allocated_bytes": 50 * GIB, "device_used_bytes": 60.0 * GIB,
    }  # fmt: skip
    estimate = Record(
        "estimate-h200", "estimate", "ok", "2026-03-02", config=candidate.config, metrics=metrics, details=details
    )
    config = {**candidate.config, "hardware": {**candidate.config["hardware"], "name": "h200"}}
    return Candidate(config, {"estimate": estimate})


def test_hardware_that_was_not_measured_is_projected_and_left_open(pilot: MakePilot) -> None:
    measured = pilot(hardware="h100", days=8.0)
    plan = _plan(measured, _estimated(measured, speed=2.0, band=0.1))
    option = next(item.option for item in plan.choice.judged if item.option.hardware == "h200")
    assert _decisions(plan)["h200"] == "open"
    assert option.origin == "projected"
    reason = _reason(plan, "h200")
    assert "its speed is projected (step_seconds of estimate, carried over from 3 runs on h100, within 10 %)" in reason
    assert f"the rest of its ledger is that of {measured.label}" in reason
    # twice as fast as 8 days: done in a week, with a band that leaves no doubt
    assert [outcome.name for outcome in option.outcomes] == ["7d", "30d"]
    assert option.outcomes[0].probability > 0.99
    assert option.outcomes[0].run_hours == pytest.approx(4 * 24, rel=0.02)


def test_an_estimate_that_nothing_corrected_projects_nothing(pilot: MakePilot) -> None:
    measured = pilot(hardware="h100", days=8.0)
    plan = _plan(measured, _estimated(measured, speed=2.0, band=None))
    assert "projected" not in _reason(plan, "h200")
    assert next(item.option for item in plan.choice.judged if item.option.hardware == "h200").outcomes == []


def test_the_band_of_a_projection_widens_the_chances(pilot: MakePilot) -> None:
    measured = pilot(hardware="h100", days=8.0)

    def chance(band: float) -> float:
        plan = _plan(measured, _estimated(measured, speed=1.2, band=band))
        return (
            next(item.option for item in plan.choice.judged if item.option.hardware == "h200").outcomes[0].probability
        )

    # 6.67 days against 7: nearly sure, and no longer so when the speed may be off by a third
    assert chance(0.01) > 0.95 > chance(0.33) > 0.5
