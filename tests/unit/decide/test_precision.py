"""Accept, reject or undecided, from curves written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from pilotkit.decide.precision import Tolerances, judge_precision

TOLERANCES = Tolerances(
    loss_rtol=1e-3, max_grad_deviation=0.1, reject_factor=3.0, max_lost_updates=0.1, max_skipped_steps=0.25
)


def _curve(**changed: Any) -> dict[str, Any]:
    return {
        "losses": [4.0, 3.0, 2.5],
        "grad_norms": [1.0, 1.0, 1.0],
        "skipped": [False, False, False],
        "events": [],
        "ended": "",
        "eval_loss": 2.0,
        "lost_share": 0.0,
        "stuck": [],
        "grad_deviation": {"embedding": 0.01, "blocks.0": 0.02},
        **changed,
    }


NOISE = [_curve(eval_loss=2.05, grad_deviation={"blocks.0": 0.8}), _curve(eval_loss=1.98)]


def _judge(reference: dict[str, Any] | None = None, noise: list[dict[str, Any]] = NOISE, **changed: Any) -> Any:
    return judge_precision(reference or _curve(), _curve(**changed), noise, name="bf16", tolerances=TOLERANCES)


def test_accepted_with_its_figures() -> None:
    judged = _judge(eval_loss=2.04, losses=[4.0, 3.1, 2.5], grad_norms=[1.1, 1.0, 1.0])
    assert judged.verdict == "accept"
    assert judged.reasons[0] == (
        "after 3 steps the evaluation loss of bf16 is 0.04 off that of fp32 (2.0000); fp32 on other rows ends up to "
        "0.05 off, accepted is 0.05."
    )
    assert judged.reasons[1] == (
        "the first gradient is at most 2 % off that of fp32 (in blocks.0); other rows change it by 80 %, "
        "accepted is 10 %."
    )
    assert judged.figures == pytest.approx(
        {
            "loss_deviation": 0.04,
            "loss_noise": 0.05,
            "max_step_loss_deviation": 0.1,
            "max_grad_norm_deviation": 0.1,
            "grad_deviation": 0.02,
            "grad_noise": 0.8,
            "lost_update_share": 0.0,
            "skipped_share": 0.0,
        }
    )


@pytest.mark.parametrize(
    ("changed", "verdict", "words"),
    [
        ({"eval_loss": 2.10}, "undecided", "is 0.1 off that of fp32"),
        ({"eval_loss": 2.16}, "reject", "is 0.16 off that of fp32"),
        ({"grad_deviation": {"head": 0.2}}, "undecided", "at most 20 % off that of fp32 (in head)"),
        ({"grad_deviation": {"head": 0.4}}, "reject", "at most 40 % off"),
        ({"grad_deviation": {"head": None}}, "undecided", "no first gradient could be compared"),
        ({"lost_share": 0.5}, "reject", "bf16 rounded 50 % of the parameter updates away"),
        ({"stuck": ["norm.weight"]}, "undecided", "bf16 rounds most updates of norm.weight away"),
        ({"skipped": [True, False, False]}, "reject", "the loss scaler skipped 33.3 % of the steps"),
    ],
    ids=["loss near", "loss far", "gradient near", "gradient far", "no gradient", "lost", "stuck", "skipped"],
)
def test_each_fault_and_doubt(changed: dict[str, Any], verdict: str, words: str) -> None:
    judged = _judge(**changed)
    assert judged.verdict == verdict
    assert words in " ".join(judged.reasons)


def test_what_differs_in_nothing_was_not_tried() -> None:
    judged = _judge(grad_deviation={"embedding": 0.0, "blocks.0": 0.0})
    assert judged.verdict == "undecided"
    assert judged.reasons[0].startswith("bf16 and fp32 are the same to the last bit here")
    assert _judge(losses=[4.0, 3.0, 2.4], grad_deviation={"embedding": 0.0}).verdict == "accept"


def test_nan_names_the_module() -> None:
    event = {"step": 2, "module": "blocks.1.mlp", "where": "output", "kind": "nan"}
    judged = _judge(ended="step 2: the loss is nan", eval_loss=None, events=[event])
    assert judged.verdict == "reject"
    assert judged.reasons[0] == (
        "bf16 ended without a finite loss: step 2: the loss is nan (step 2: nan in the output of blocks.1.mlp)."
    )


def test_without_a_sound_reference_nothing_is_decided() -> None:
    judged = _judge(_curve(ended="step 1: the loss is nan", eval_loss=None))
    assert judged.verdict == "undecided"
    assert "fp32 itself ended" in judged.reasons[0]


def test_a_reference_that_learnt_less_than_chance_decides_nothing() -> None:
    judged = _judge(_curve(losses=[2.02, 2.01, 2.0]), losses=[2.02, 2.01, 2.0])
    assert judged.verdict == "undecided"
    assert "raise numerics.num_steps" in judged.reasons[0]


def test_a_noise_floor_of_nothing_leaves_the_relative_tolerance() -> None:
    same = [_curve()]
    assert _judge(noise=same, eval_loss=2.0015).verdict == "accept"
    assert _judge(noise=same, eval_loss=2.004).verdict == "undecided"
