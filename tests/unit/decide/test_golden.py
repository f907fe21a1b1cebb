"""Golden records give golden decisions: a study of four hardware options, as it lies on the disk.

`golden/study.json` holds the records, `golden/decision.json` what the plan made of them. After a change that is meant
to change decisions: PILOTKIT_REWRITE_GOLDEN=1, and read the difference.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from pilotkit.decide.cost import Prices
from pilotkit.decide.failures import FailureModel
from pilotkit.decide.planning import Plan, Question, make_plan
from pilotkit.decide.study import candidates_of
from pilotkit.decide.workload import Assumptions
from pilotkit.records.record import Record

GOLDEN = Path(__file__).parent / "golden"
CHOSEN = "0" * 64


def _records() -> list[Record]:
    plain = json.loads((GOLDEN / "study.json").read_text(encoding="utf-8"))
    return [Record.from_dict(item) for item in plain]


def _plan(records: list[Record]) -> Plan:
    first = next(record for record in records if record.config_digest == CHOSEN)
    question = Question(
        assumptions=Assumptions(FailureModel("typical", 5e-3, 2e-3, 2e-2, 3.0), num_draws=20_000),
        reservations={"7d": 7.0, "30d": 30.0},
        prices=Prices(
            per_gpu_hour={"a100": 1.8, "h100": 2.9, "h200": 3.6, "mi300x": 2.4},
            minimum_gpus={"h200": 16}, egress_per_gb=0.09, copies_out=20, as_of="2026-03-01",
        ),
        device_counts=(8, 16, 32),
        max_devices=256,
    )  # fmt: skip
    study = candidates_of(records, like=first.config, digest=first.config_digest)
    return make_plan(study, question=question)


def _decision(plan: Plan) -> dict[str, Any]:
    return {
        "options": [
            {
                "label": item.option.label,
                "decision": item.decision,
                "origin": item.option.origin,
                "probabilities": {outcome.name: outcome.probability for outcome in item.option.outcomes},
                "costs": {outcome.name: outcome.cost for outcome in item.option.outcomes},
                "gpu_hours": item.option.gpu_hours,
            }
            for item in plan.choice.judged
        ],
        "knees": {mode: [found.knee.num_devices, found.knee.cause] for mode, found in plan.scaling.items()},
        "ordered_by": plan.choice.quantity,
    }


def test_golden_records_give_golden_decisions() -> None:
    found = _decision(_plan(_records()))
    path = GOLDEN / "decision.json"
    if os.environ.get("PILOTKIT_REWRITE_GOLDEN") == "1":
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    expected = json.loads(path.read_text(encoding="utf-8"))
    # Another numpy may draw other numbers: decisions are the same, probabilities within two standard errors.
    assert [(item["label"], item["decision"]) for item in found["options"]] == [
        (item["label"], item["decision"]) for item in expected["options"]
    ]
    assert (found["knees"], found["ordered_by"]) == (expected["knees"], expected["ordered_by"])
    for one, other in zip(found["options"], expected["options"], strict=True):
        assert one["origin"] == other["origin"]
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=0.01)
        assert one["costs"] == pytest.approx(other["costs"])
        assert one["gpu_hours"] == (other["gpu_hours"] and pytest.approx(other["gpu_hours"], rel=0.005))


def test_the_same_records_in_another_order_decide_the_same() -> None:
    records = _records()
    one = _decision(_plan(records))
    # What was newest stays newest: find_records sorts by start, so only studies change places.
    shuffled = sorted(records, key=lambda record: (random.Random(record.config_digest).random(), record.started_at))
    other = _decision(_plan(shuffled))
    assert one == other


def test_details_are_plain_json_without_infinities() -> None:
    details = _plan(_records()).to_details()
    assert json.loads(json.dumps(details, allow_nan=False)) == details
