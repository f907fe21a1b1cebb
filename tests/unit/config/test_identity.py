"""The digest of a configuration: the same for the same intended run, another for any other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from pilotkit.config.identity import config_digest, identity_of, traced_digest
from pilotkit.config.schema import PilotConfig

Changed = Callable[..., PilotConfig]


@pytest.mark.parametrize(
    "values",
    [
        {"stage": "measure"},
        {"name": "other"},
        {"output_dir": "/elsewhere"},
        {"measure.num_measured_steps": 50},
        {"pilot.strategies": ["ddp"]},
        {"prove.num_steps": 7},
        {"restore.path": "/ckpt"},
        {"budget.download_seconds": 60.0},
        {"plan.price_per_gpu_hour": 2.5},
        {"reservation.days": 30.0},
        {"report.open_browser": True},
        {"hardware.sources": {"memory_bytes": "a better source"}},
        {"hardware.efficiencies": {"matmul": 0.5}},
    ],
    ids=lambda values: next(iter(values)),
)
def test_how_a_stage_looks_at_the_run_does_not_identify_it(changed: Changed, values: dict[str, Any]) -> None:
    assert config_digest(changed(values)) == config_digest(changed({}))


@pytest.mark.parametrize(
    "values",
    [
        {"train.seq_len": 256},
        {"train.seed": 1},
        {"train.total_tokens": 1},
        {"model.kwargs": {"num_layers": 5}},
        {"model.revision": "abc"},
        {"data.num_workers": 2},
        {"data.path": "/corpus"},
        {"optimizer.lr": 0.5},
        {"scheduler.name": "linear"},
        {"parallelism.num_nodes": 2},
        {"precision.name": "bf16"},
        {"activation_checkpointing.mode": "full"},
        {"hardware.memory_bytes": 1},
        {"image": "app@sha256:1"},
    ],
    ids=lambda values: next(iter(values)),
)
def test_what_is_trained_and_on_what_identifies_it(changed: Changed, values: dict[str, Any]) -> None:
    assert config_digest(changed(values)) != config_digest(changed({}))


def test_the_digest_does_not_rest_on_the_order_of_names(changed: Changed) -> None:
    one, other = changed({"model.kwargs": {"a": 1, "b": "ü"}}), changed({"model.kwargs": {"b": "ü", "a": 1}})
    assert config_digest(one) == config_digest(other)
    assert len(config_digest(one)) == 64


def test_every_section_is_on_one_side(changed: Changed) -> None:
    """A new section has to be decided on; this test lists those that do not identify a run."""
    sections = {field.name for field in dataclasses.fields(PilotConfig)}
    assert sections - set(identity_of(changed({}))) == {
        *("stage", "name", "output_dir", "reservation", "failures", "cluster", "sweep", "lock"),
        *(
            "estimate",
            "prove",
            "measure",
            "numerics",
            "pilot",
            "restore",
            "budget",
            "plan",
            "prices",
            "report",
            "phase_timeout_seconds",
            "estimate",
            "qualify",
            "replay",
        ),
    }


@pytest.mark.parametrize(
    ("values", "is_same"),
    [
        ({"train.micro_batch_size": 2}, True),
        ({"train.seq_len": 64}, True),
        ({"hardware.memory_bytes": 1, "hardware.name": "other"}, True),
        ({"estimate.headroom": 0.2}, True),
        ({"hardware.device_type": "rocm"}, False),
        ({"hardware.device_count": 5}, False),
        ({"optimizer.name": "sgd"}, False),
        ({"estimate.fallback": "analytic"}, False),
        # 8 rows in micro-batches of 4 are two; in micro-batches of 2, four.
        ({"train.global_batch_size": 8}, False),
    ],
)
def test_what_one_trace_serves(changed: Changed, values: dict[str, Any], is_same: bool) -> None:
    assert (traced_digest(changed(values)) == traced_digest(changed({}))) == is_same
