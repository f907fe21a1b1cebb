"""What more devices bring, and where the knee is: each figure computed by hand."""

from __future__ import annotations

import math

import pytest

from pilotkit.decide.failures import FailureModel
from pilotkit.decide.knee import look
from pilotkit.decide.scaling import (
    FIXED_DEVICE_BATCH,
    FIXED_GLOBAL_BATCH,
    Limits,
    Measured,
    fit,
    scale,
    valid_counts,
)

LIMITS = Limits(devices_per_node=8, micro_batch_size=4, seq_len=100, global_batch_size=256)
# One device: 1 s a micro-batch. Eight: 0.1 s more.
POINTS = [Measured(1, 1.0, 1), Measured(8, 1.1, 1)]
BOTH = (FIXED_GLOBAL_BATCH, FIXED_DEVICE_BATCH)


def _model(points: list[Measured] = POINTS):  # type: ignore[no-untyped-def] # only read below
    model = fit(points)
    assert model is not None
    return model


def test_one_point_beyond_one_is_all_bandwidth_and_uncalibrated() -> None:
    model = _model()
    assert model.bandwidth_seconds == pytest.approx(0.1 * 8 / 7)
    assert model.latency_seconds == 0
    assert not model.calibrated


def test_two_points_tell_the_terms_apart() -> None:
    points = [Measured(n, 1.0 + 0.2 * (n - 1) / n + 0.05 * math.log2(n), 1) for n in (1, 8, 64)]
    model = _model(points)
    assert (model.bandwidth_seconds, model.latency_seconds) == pytest.approx((0.2, 0.05))
    assert model.calibrated


@pytest.mark.parametrize(
    ("beyond", "expected"),
    [({2: 0.4, 64: 0.1}, "bandwidth"), ({2: 0.01, 64: 0.6}, "latency")],
    ids=["falling", "steep"],
)
def test_a_term_is_never_below_zero(beyond: dict[int, float], expected: str) -> None:
    model = _model([Measured(1, 1.0, 1), *(Measured(n, 1.0 + seconds, 1) for n, seconds in beyond.items())])
    zero = model.latency_seconds if expected == "bandwidth" else model.bandwidth_seconds
    assert zero == 0
    assert model.bandwidth_seconds + model.latency_seconds > 0


def test_a_measured_number_is_what_was_measured() -> None:
    point = scale(_model(), 8, limits=LIMITS, mode=FIXED_DEVICE_BATCH)
    assert point.origin == "measured"
    assert point.step_seconds == pytest.approx(1.1)
    assert point.tokens_per_second == pytest.approx(8 * 400 / 1.1)
    assert point.low == point.high == point.tokens_per_second


def test_beyond_the_measured_there_is_a_band() -> None:
    point = scale(_model(), 64, limits=LIMITS, mode=FIXED_DEVICE_BATCH)
    assert point.origin == "projected"
    flat = 0.1 * 8 / 7 * 63 / 64
    growing = 0.1 / 3 * 6
    assert point.high == pytest.approx(64 * 400 / (1 + flat))
    assert point.low == pytest.approx(64 * 400 / (1 + growing))
    assert point.tokens_per_second == pytest.approx(point.high)


def test_a_slower_network_slows_the_ring() -> None:
    slow = Limits(**{**LIMITS.__dict__, "network_factor": 9.0})
    point = scale(_model(), 64, limits=slow, mode=FIXED_DEVICE_BATCH)
    assert point.communication_seconds == pytest.approx(9 * 0.1 * 8 / 7 * 63 / 64)
    assert scale(_model(), 8, limits=slow, mode=FIXED_DEVICE_BATCH).communication_seconds == pytest.approx(0.1)


def test_a_fixed_global_batch_leaves_less_to_each_device() -> None:
    point = scale(_model(), 16, limits=LIMITS, mode=FIXED_GLOBAL_BATCH)
    assert point.compute_seconds == pytest.approx(4.0)  # 256 rows / (16 x 4)
    assert point.tokens_per_step == 25_600
    with pytest.raises(ValueError, match="256 rows cannot be split into 12 at a time"):
        scale(_model(), 3, limits=LIMITS, mode=FIXED_GLOBAL_BATCH)


def test_numbers_that_can_be_had() -> None:
    assert valid_counts(limits=LIMITS, mode=FIXED_GLOBAL_BATCH, max_devices=1024) == [1, 2, 4, 8, 16, 32, 64]
    assert valid_counts(limits=LIMITS, mode=FIXED_DEVICE_BATCH, max_devices=24) == [1, 2, 3, 4, 5, 6, 7, 8, 16, 24]


def _knee(mode: str, points: list[Measured] = POINTS, **changed: object):  # type: ignore[no-untyped-def]
    limits = Limits(**{**LIMITS.__dict__, **changed})  # type: ignore[arg-type]
    scaling = look(_model(points), limits=limits, mode=mode, max_devices=1024, min_marginal_gain=0.5)
    assert scaling is not None
    return scaling.knee


def test_the_global_batch_ends_it() -> None:
    knee = _knee(FIXED_GLOBAL_BATCH)
    assert (knee.num_devices, knee.cause) == (64, "global batch")
    assert "64 devices take the batch of 256 rows at once (4 each)" in knee.sentence


def test_a_largest_useful_batch_ends_it() -> None:
    knee = _knee(FIXED_DEVICE_BATCH, max_global_batch_size=128)
    assert (knee.num_devices, knee.cause) == (32, "global batch")


@pytest.mark.parametrize("mode", BOTH)
def test_input_ends_it_at_four(mode: str) -> None:
    # 400 tokens/s a device and 1,320 tokens/s of input: enough for 3.3 devices.
    knee = _knee(mode, points=[Measured(1, 1.0, 1)], supply_shared=1320.0)
    assert knee.cause == "input"
    assert knee.num_devices == (3 if mode == FIXED_DEVICE_BATCH else 4)


def test_loaders_of_each_node_do_not_end_it() -> None:
    knee = _knee(FIXED_DEVICE_BATCH, supply_per_node=8 * 400.0)
    assert (knee.num_devices, knee.cause) == (1024, "none")


def test_communication_ends_it() -> None:
    # A step of 1 s that waits 5 s at 8 devices: 2 devices run at 400/(1 + 20/7) each, slower than one.
    knee = _knee(FIXED_GLOBAL_BATCH, points=[Measured(1, 64.0, 64), Measured(8, 13.0, 8)], network_factor=9.0)
    assert knee.cause == "communication"
    assert knee.num_devices == 8
    assert "communication then takes" in knee.sentence


def test_failures_end_it() -> None:
    # Two hours between saves and a restart of an hour: at 1,024 devices the run stops 13 times a day.
    knee = _knee(
        FIXED_DEVICE_BATCH,
        points=[Measured(1, 1.0, 1)],
        failures=FailureModel("bad", 0.1),
        steps_between_saves=7200,
        restart_seconds=3600.0,
    )
    assert knee.cause == "failures and checkpoints"
    assert 100 < knee.num_devices < 1024


def test_nothing_measured_nothing_said() -> None:
    assert fit([]) is None
