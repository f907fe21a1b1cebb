"""Steps are timed from one synchronisation to the next, sections on the host, on a device that works later."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from pilotkit.meter import StepClock


def test_time_is_true_though_work_returns_at_once(device: Any) -> None:
    clock = StepClock(device.synchronize)
    for _ in range(2):
        with clock.step():
            device.launch(0.5)
    assert clock.step_seconds == [0.5, 0.5]


def test_work_from_before_is_not_in_the_step(device: Any) -> None:
    clock = StepClock(device.synchronize)
    device.launch(10.0)
    with clock.step():
        device.launch(0.25)
    assert clock.step_seconds == [0.25]


def test_host_and_device_overlap_inside_a_step(device: Any) -> None:
    clock = StepClock(device.synchronize)
    with clock.step():
        with clock.section("forward"):
            device.launch(1.0)
        with clock.section("data_wait"):
            device.host_work(0.75)
        with clock.section("backward"):
            device.launch(2.0)
    assert clock.step_seconds == [3.0]
    assert clock.section_seconds == {"forward": [0.0], "data_wait": [0.75], "backward": [0.0]}
    assert device.num_synchronizations == 2


def test_synchronize_sections_shows_the_devices_time(device: Any) -> None:
    clock = StepClock(device.synchronize, synchronize_sections=True)
    with clock.step():
        with clock.section("forward"):
            device.launch(1.0)
        with clock.section("backward"):
            device.launch(2.0)
    assert clock.section_seconds == {"forward": [1.0], "backward": [2.0]}
    assert device.num_synchronizations == 6


def test_sections_have_one_entry_a_step(device: Any) -> None:
    clock = StepClock(device.synchronize)
    with clock.step():
        for _ in range(3):
            with clock.section("forward"):
                device.host_work(0.5)
    with clock.step(), clock.section("backward"):
        device.host_work(2.0)
    assert clock.section_seconds == {"forward": [1.5, 0.0], "backward": [0.0, 2.0]}
    assert clock.step_seconds == [1.5, 2.0]


def test_nested_sections_are_part_of_both(device: Any) -> None:
    clock = StepClock(device.synchronize)
    with clock.step(), clock.section("backward"):
        device.host_work(1.0)
        with clock.section("communication"):
            device.host_work(0.5)
    assert clock.section_seconds == {"communication": [0.5], "backward": [1.5]}


def test_a_step_that_raises_is_not_recorded_and_the_next_one_is(device: Any) -> None:
    clock = StepClock(device.synchronize)
    with pytest.raises(ValueError, match=r"^bad row$"), clock.step(), clock.section("forward"):
        raise ValueError("bad row")
    with clock.step(), clock.section("forward"):
        device.host_work(1.0)
    assert clock.step_seconds == [1.0]
    assert clock.section_seconds == {"forward": [1.0]}


def test_what_lies_between_steps_is_in_none_and_what_a_step_without_an_end_took_is_not_between(device: Any) -> None:
    """A trainer abandons the step in which it evaluated."""
    clock = StepClock(device.synchronize)
    with clock.step():
        device.launch(1.0)
    device.host_work(0.25)
    with clock.step():
        device.launch(1.0)
    with contextlib.suppress(ValueError), clock.step():
        device.host_work(30.0)
        raise ValueError("abandoned")
    device.host_work(0.5)
    with clock.step():
        device.launch(1.0)
    assert clock.step_seconds == [1.0, 1.0, 1.0]
    assert clock.between_seconds == [0.0, 0.25, 0.5]


def test_misuse_is_refused(device: Any) -> None:
    clock = StepClock(device.synchronize)
    with pytest.raises(RuntimeError, match=r"^section 'forward' was started outside a step$"), clock.section("forward"):
        pass
    with clock.step():
        with pytest.raises(RuntimeError, match=r"^a step was started inside another step$"), clock.step():
            pass
        with (
            clock.section("forward"),
            pytest.raises(RuntimeError, match=r"^section 'forward' was started inside itself$"),
            clock.section("forward"),
        ):
            pass
    assert len(clock.step_seconds) == 1
