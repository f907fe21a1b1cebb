"""The rules of the choice at their edges: what counts as lacking memory, as a Hopper path, as the order of options."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest

from pilotkit.decide.choice import choose
from pilotkit.decide.cost import Prices
from pilotkit.decide.failures import FailureModel
from pilotkit.decide.option import Option
from pilotkit.decide.planning import Question, make_plan
from pilotkit.decide.study import Candidate
from pilotkit.decide.workload import Assumptions
from pilotkit.records.record import Record

MakePilot = Callable[..., Candidate]
SURE = Assumptions(FailureModel("none", 0.0), drift_spread=0.0, num_draws=1000)
PRICES = Prices(per_gpu_hour={"a100": 1.5, "h100": 3.0, "h200": 3.5})


def _options(*candidates: Candidate, prices: Prices = PRICES, counts: tuple[int, ...] = ()) -> list[Option]:
    question = Question(
        assumptions=SURE, reservations={"7d": 7.0, "30d": 30.0}, prices=prices, device_counts=counts, max_devices=64
    )
    return [item.option for item in make_plan(candidates, question=question).choice.judged]


def test_sorted_by_the_named_quantity_whatever_the_order(pilot: MakePilot) -> None:
    options = _options(
        pilot(days=6.0), pilot(hardware="h100", days=3.0), pilot(hardware="h200", days=2.0), counts=(16,)
    )
    for _ in range(5):
        random.shuffle(options)
        choice = choose(options, currency="USD")
        costs = [item.option.holding.cost for item in choice.judged if item.option.holding]
        assert costs == sorted(costs)  # type: ignore[type-var]
        assert choice.recommended is choice.judged[0].option
        assert [item.decision for item in choice.judged].count("accepted") == 1


def test_one_price_missing_and_gpu_hours_decide_for_all(pilot: MakePilot) -> None:
    prices = Prices(per_gpu_hour={"a100": 1.5})
    choice = choose(_options(pilot(days=6.0), pilot(hardware="h100", days=3.0), prices=prices), currency="USD")
    assert choice.quantity == "gpu_hours"
    hours = [item.option.gpu_hours for item in choice.judged]
    assert hours == sorted(hours)  # type: ignore[type-var]


def test_hardware_on_which_another_strategy_fits_does_not_lack_memory(pilot: MakePilot) -> None:
    ddp = pilot(strategy="ddp", fits=False, peak_gib=78)
    choice = choose(_options(pilot(), ddp, pilot(hardware="h200", days=2.0)), currency="USD")
    reason = next(item.reason for item in choice.judged if item.option.hardware == "h200")
    assert "memory is what the others lack" not in reason


def test_a_projected_hopper_path_is_called_so(pilot: MakePilot) -> None:
    options = _options(pilot(days=6.0), pilot(hardware="h100", days=6.0, precision="fp8"), counts=(16,))
    reasons = {item.option.label: item.reason for item in choose(options, currency="USD").judged}
    assert "the projected fp8" in reasons["16 x h100, fsdp, fp8, micro-batch 4"]
    assert "the measured fp8" in reasons["8 x h100, fsdp, fp8, micro-batch 4"]


@pytest.mark.parametrize("missing", ["measure", "pilot", "restore", "budget", "qualify"])
def test_any_missing_stage_leaves_an_option_open(pilot: MakePilot, missing: str) -> None:
    lacks = (missing, "measure") if missing == "pilot" else (missing,)
    choice = choose(_options(pilot(lacks=lacks)), currency="USD")
    assert choice.recommended is None
    assert [item.decision for item in choice.judged] == ["open"]
    assert f"{missing}: not run" in choice.judged[0].reason


@pytest.mark.parametrize("hardware", ["a100", "h100", "mi300x"])
def test_a_set_that_nobody_qualified_is_not_recommended(pilot: MakePilot, hardware: str) -> None:
    typed = ("hardware=h200", "model=mine", "parallelism.num_nodes=2", "precision=fp8", "parallelism=ddp")
    question = Question(assumptions=SURE, reservations={"7d": 7.0}, prices=PRICES, max_devices=8, overrides=typed)
    plan = make_plan([pilot(hardware=hardware, qualified=None)], question=question)
    (judged,) = plan.choice.judged
    assert (judged.decision, plan.choice.recommended) == ("open", None)
    assert judged.reason == (
        f"8 x {hardware}, fsdp, bf16_mixed, micro-batch 4: not qualified for this application; "
        "not decided, evidence is missing (qualify: not run)"
    )
    # The user's other words stay; what makes this option another one replaces theirs.
    assert judged.option.commands == [
        f"pilotkit stage=qualify model=mine hardware={hardware} parallelism=fsdp precision=bf16_mixed "
        "train.micro_batch_size=4"
    ]


def test_a_set_that_was_tried_and_failed_is_rejected_on_any_hardware(pilot: MakePilot) -> None:
    choice = choose(_options(pilot(days=6.0), pilot(hardware="h100", days=1.0, qualified=False)), currency="USD")
    reasons = {item.option.hardware: (item.decision, item.reason) for item in choice.judged}
    assert reasons["a100"][0] == "accepted"
    assert reasons["h100"][0] == "rejected"
    assert "not qualified for this application: not qualified: operator aten::mm: differs by 0.2" in reasons["h100"][1]


def test_nobody_qualifies_the_processor(pilot: MakePilot) -> None:
    candidate = pilot(qualified=None)
    config = {**candidate.config, "hardware": {**candidate.config["hardware"], "device_type": "cpu"}}
    (option,) = _options(Candidate(config, candidate.records))
    assert option.missing == []


def test_evidence_of_another_lock_is_not_used(pilot: MakePilot) -> None:
    """The newest lock voids what was made under another one: no time to finish is stated from it."""
    one = pilot()
    for record in one.records.values():
        record.lock_digest = "new"
    lock = Record("lock-1", "lock", "ok", "2026-03-02", lock_digest="new")
    one.records["qualify"].lock_digest = "old"
    (option,) = _options(Candidate.of(one.config, {**one.records, "lock": lock}))
    assert option.missing == ["qualify: drifted since qualify-a100-fsdp, the newest lock is lock-1"]
    lock.lock_digest = "newer"
    (option,) = _options(Candidate.of(one.config, {**one.records, "lock": lock}))
    assert option.outcomes == []
    assert [text.partition(":")[0] for text in option.missing] == ["measure", "pilot", "restore", "qualify", "budget"]


def test_an_estimate_whose_band_holds_the_limit_is_no_answer(pilot: MakePilot) -> None:
    (option,) = _options(pilot())
    unsure = dataclasses.replace(
        option, fit=dataclasses.replace(option.fit, answer="not known", sentence="may not fit")
    )
    assert choose([unsure], currency="USD").judged[0].decision == "open"
