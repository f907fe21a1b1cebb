"""Corrections from measured runs: each claim against a device that is known, and judged on runs left out of the fit."""

from __future__ import annotations

import dataclasses
import random

import pytest

from pilotkit.decide.calibration import Calibration, Correction, MeasuredRun, attributed, calibrate, corrected
from pilotkit.decide.step_time import StepTime

# What the device really does to each class, against what is assumed of it.
TRUE = {"matmul": 1.35, "attention": 1.9, "elementwise": 1.1, "launch": 1.0, "communication": 2.0}
# Seconds by class at the assumed rates: a small model, attention at long sequences, many devices, ...
MIXES = [
    (1.0, 0.1, 0.8, 0.2),
    (2.0, 2.5, 1.0, 0.3),
    (0.5, 0.1, 1.2, 0.1),
    (3.0, 0.6, 1.0, 2.0),
    (1.5, 1.0, 0.7, 0.6),
    (4.0, 0.5, 2.5, 0.9),
    (0.6, 0.2, 1.6, 0.2),
]


def _time(mix: tuple[float, ...]) -> StepTime:
    matmul, attention, elementwise, communication = mix
    parts = {"matmul": matmul, "attention": attention, "elementwise": elementwise, "communication": communication}
    return StepTime({**parts, "launch": 0.01}, num_flops=1.0)


def _run(mix: tuple[float, ...], *, noise: float = 0.0, key: str = "", is_family: bool = True) -> MeasuredRun:
    raw = _time(mix)
    seconds = corrected(raw, TRUE).step_seconds * (1 + noise)
    return MeasuredRun(key or str(mix), raw, seconds, allocated=None, reserved=None, overhead=None, is_family=is_family)


def test_one_run_gives_a_scale_and_an_assumed_band() -> None:
    calibration = calibrate([_run(MIXES[0])])
    assert calibration.time is not None
    assert len(set(calibration.time.factors.values())) == 1
    assert calibration.step(_time(MIXES[0])).step_seconds == pytest.approx(_run(MIXES[0]).step_seconds, rel=0.01)
    assert calibration.words(calibration.time) == "calibrated by 1 run, within 20 % (band assumed)"
    assert calibration.memory is None
    assert calibration.words(calibration.memory) == "uncalibrated"


@pytest.mark.parametrize("left_out", range(len(MIXES)))
def test_a_run_that_was_held_out_is_met_within_five_percent(left_out: int) -> None:
    """One percent of noise on every measurement; before the correction the same run is missed by a sixth and more."""
    chance = random.Random(left_out)
    known = [_run(mix, noise=chance.gauss(0, 0.01)) for index, mix in enumerate(MIXES) if index != left_out]
    truth = _run(MIXES[left_out]).step_seconds
    assert truth is not None
    assert _time(MIXES[left_out]).step_seconds / truth < 0.83
    assert calibrate(known).step(_time(MIXES[left_out])).step_seconds == pytest.approx(truth, rel=0.05)


def test_the_band_is_the_largest_error_of_runs_left_out() -> None:
    clean = calibrate([_run(mix, key=str(index)) for index, mix in enumerate(MIXES)]).time
    assert clean is not None
    assert not clean.is_band_assumed
    assert set(clean.held_out) == {str(index) for index in range(len(MIXES))}
    assert clean.band < 0.05
    assert clean.set_aside == {}
    rough = calibrate([_run(mix, key=str(index), noise=0.08 * (-1) ** index) for index, mix in enumerate(MIXES)]).time
    assert rough is not None
    assert rough.set_aside == {}
    assert rough.band > 0.08


@pytest.mark.parametrize(("factor", "num_others"), [(0.5, 6), (1.4, 6), (2.0, 6), (0.5, 3), (2.0, 3)])
def test_a_run_that_the_others_contradict_is_set_aside(factor: float, num_others: int) -> None:
    """A shared machine, a debugger, a wrong unit: it corrects nothing, widens no band, and is named with its ratio."""
    runs = [_run(mix, key=str(index)) for index, mix in enumerate(MIXES)][:num_others]
    seconds = _run(MIXES[3]).step_seconds
    assert seconds is not None
    spoilt = MeasuredRun("spoilt", _time(MIXES[3]), factor * seconds, None, None, None)
    clean, disturbed = calibrate(runs).time, calibrate([*runs, spoilt]).time
    assert disturbed is not None
    assert clean is not None
    assert disturbed.factors == pytest.approx(clean.factors)
    assert (disturbed.num_runs, disturbed.band) == (num_others, pytest.approx(clean.band))
    assert disturbed.set_aside == {"spoilt": pytest.approx(factor, rel=0.1)}


def test_two_that_contradict_each_other_are_both_kept() -> None:
    """Nobody has a majority: the band says how little is known."""
    runs = [_run(MIXES[0], key="a"), _run(MIXES[1], key="b"), _run(MIXES[2], key="c", noise=1.0)]
    found = calibrate(runs).time
    assert found is not None
    assert (found.num_runs, found.set_aside) == (3, {})
    assert found.band > 0.3


def test_a_family_of_its_own_is_contradicted_by_no_other_family() -> None:
    foreign = [_run(mix, key=str(index), is_family=False) for index, mix in enumerate(MIXES[1:])]
    own = MeasuredRun("own", _time(MIXES[0]), 2 * (_run(MIXES[0]).step_seconds or 0), None, None, None)
    found = calibrate([*foreign, own]).time
    assert found is not None
    assert (found.num_runs, found.set_aside) == (7, {})


def test_classes_stray_less_on_a_device_whose_efficiencies_were_measured() -> None:
    """Three runs that differ from what is known say more of the whole than of one class."""
    runs = [_run(mix) for mix in MIXES[:3]]
    loose, tight = calibrate(runs).time, calibrate(runs, knows_device=True).time
    assert loose is not None
    assert tight is not None
    spreads = [max(found.factors.values()) / min(found.factors.values()) for found in (loose, tight)]
    assert spreads[0] > 1.6 > 1.5 > spreads[1]


def test_memory_that_the_others_contradict_is_set_aside() -> None:
    runs = [dataclasses.replace(_held(1.02, 1.10, 1.5), key=str(index)) for index in range(4)]
    spoilt = dataclasses.replace(_held(1.02, 2.2, 1.5), key="spoilt")
    found = calibrate([*runs, spoilt]).memory
    assert found is not None
    assert found.factors == pytest.approx(getattr(calibrate(runs).memory, "factors", {}))
    assert found.set_aside == {"spoilt": pytest.approx(2.0, rel=0.001)}


def test_another_family_counts_less() -> None:
    own = [_run(mix) for mix in MIXES[:3]]
    raw = _time(MIXES[3])
    foreign = MeasuredRun("other", raw, 1.1 * corrected(raw, TRUE).step_seconds, None, None, None, is_family=False)
    same = MeasuredRun("other", raw, foreign.step_seconds, None, None, None)
    target = _time(MIXES[4])
    truth = corrected(target, TRUE).step_seconds
    misses = [abs(calibrate([*own, run]).step(target).step_seconds / truth - 1) for run in (foreign, same)]
    assert misses[0] < misses[1]


def test_what_is_carried_over_says_so_and_has_a_wider_band() -> None:
    runs = [_run(mix) for mix in MIXES]
    here, there = calibrate(runs), calibrate(runs, carried_from="h100")
    assert here.time is not None
    assert there.time is not None
    assert there.time.band > 0.15 > here.time.band
    assert there.words(there.time).startswith("carried over from 7 runs on h100, within ")


def _held(ratio: float, reserved: float, overhead: float) -> MeasuredRun:
    return MeasuredRun("", None, None, (100.0, 100 * ratio), (110.0, 110 * reserved), (10.0, 10 * overhead))


def test_memory_one_run_is_a_scale_three_tell_parts_apart() -> None:
    one = calibrate([_held(1.02, 1.10, 1.5)])
    assert one.reserved(100.0) == pytest.approx(110, rel=0.005)
    assert one.allocated(100.0) == one.reserved(100.0)
    assert one.overhead(10.0) == 10.0
    three = calibrate([_held(1.02, 1.10, 1.5)] * 3)
    assert three.allocated(100.0) == pytest.approx(102, rel=0.001)
    assert three.reserved(100.0) == pytest.approx(110, rel=0.001)
    assert three.overhead(10.0) == pytest.approx(15, rel=0.001)


def test_no_run_corrects_nothing() -> None:
    nothing = calibrate([])
    raw = _time(MIXES[0])
    assert nothing.step(raw) is raw
    assert nothing.allocated(5.0) == nothing.reserved(5.0) == nothing.overhead(5.0) == 5.0


def test_what_lies_between_estimate_and_measurement_is_attributed() -> None:
    raw = StepTime({"matmul": 1.0, "elementwise": 2.0, "communication": 0.0}, num_flops=1.0)
    found = attributed(raw, {"matmul": 1.5, "elementwise": 1.0}, step_seconds=3.6)
    assert found == pytest.approx({"matmul": 0.5, "elementwise": 0.0, "unexplained": 0.1})


@pytest.mark.parametrize(
    ("band", "words"), [(0.015, "1.5 %"), (0.6, "60 %"), (0.996, "100 %"), (1.04, "104 %"), (14.0, "1,400 %")]
)
def test_a_band_of_any_width_reads_as_percent(band: float, words: str) -> None:
    """Three runs of which one is wrong by two are within 100 %; that read `1e+02 %`."""
    found = Correction({}, 3, band, {"a": 0.1})
    assert Calibration(found, None).words(found) == f"calibrated by 3 runs, within {words}"
