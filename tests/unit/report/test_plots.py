"""Plots: where the shapes lie, and that they hold no markup of the user's."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from markupsafe import Markup

from pilotkit.report import curves, plots
from pilotkit.units import GIB


def _shapes(plot: Markup, tag: str, css: str) -> list[dict[str, str]]:
    root = ElementTree.fromstring(plot)
    return [dict(shape.attrib) for shape in root.iter(tag) if css in shape.get("class", "").split()]


def _texts(plot: Markup) -> list[str]:
    return [shape.text or "" for shape in ElementTree.fromstring(plot).iter("text")]


def _widths(plot: Markup, css: str) -> list[float]:
    return [float(shape["width"].rstrip("%")) for shape in _shapes(plot, "rect", css)]


def test_memory_bar_is_to_scale() -> None:
    plot = plots.memory_bar(allocated=1 * GIB, reserved=2 * GIB, device=3 * GIB, limit=4 * GIB)
    assert _widths(plot, "data") == [75.0, 50.0, 25.0]
    assert _shapes(plot, "line", "limit")[0]["x1"] == "100.000%"
    assert _texts(plot) == ["peak allocated 1.00 GiB", "limit 4.00 GiB"]


def test_memory_bar_shows_what_did_not_fit() -> None:
    plot = plots.memory_bar(allocated=3 * GIB, limit=4 * GIB, requested=2 * GIB)
    assert _widths(plot, "fault") == [40.0]
    assert _shapes(plot, "line", "limit")[0]["x1"] == "80.000%"
    assert "asked for 2.00 GiB" in _texts(plot)


def test_step_strip_puts_slow_steps_higher() -> None:
    plot = plots.step_strip([1.0, 2.0, 1.5], median=1.5, p95=1.9)
    heights = [float(dot["cy"]) for dot in _shapes(plot, "circle", "data")]
    assert heights[1] < heights[2] < heights[0]
    assert float(_shapes(plot, "line", "mark")[0]["y1"]) == pytest.approx(heights[2])
    assert _texts(plot) == ["line: median 1.50 s", "dashes: p95 1.90 s", "step 1", "step 3"]


@pytest.mark.parametrize("steps", [[0.0], [0.5], [0.5, 0.5]], ids=["zero", "one", "equal"])
def test_step_strip_of_equal_steps(steps: list[float]) -> None:
    dots = _shapes(plots.step_strip(steps, median=steps[0], p95=None), "circle", "data")
    assert {float(dot["cy"]) for dot in dots} == {73.0}


def test_throughput_against_the_ideal() -> None:
    plot = plots.throughput_bars({"ddp": 3000.0, "fsdp": 2000.0}, ideal=4000.0, num_devices=2)
    assert _widths(plot, "data") == [75.0, 50.0]
    assert "3 k tokens/s, 75 % of ideal" in _texts(plot)
    assert "ideal: 2 x one device, 4 k tokens/s" in _texts(plot)


def test_stacked_bar_fills_its_place() -> None:
    plot = plots.stacked_bar([("a", 1.0, 0), ("b", 3.0, 1)], label="whole")
    assert _widths(plot, "series-0") == [25.0]
    assert _shapes(plot, "rect", "series-1")[0]["x"] == "25.000%"
    assert _widths(plot, "series-1") == [75.0]


def test_probability_over_days() -> None:
    rows = [
        {"name": "1d", "days": 1.0, "probability": 0.25, "fits": False},
        {"name": "2d", "days": 2.0, "probability": 1.0, "fits": True},
    ]
    plot = curves.probability_curve([[0.0, 0.0], [1.0, 0.25], [2.0, 1.0]], reservations=rows, target=0.9)
    assert plot.count('class="curve"') == 2
    assert {"1d: 25 %", "2d: over 99 %", "target 90 %", "day 2", "50"} <= set(_texts(plot))
    assert 'aria-label="Probability to be done over 2 days: 1d 25 %, 2d over 99 %"' in plot
    assert "fault-text" in plot


def test_speed_over_devices_with_its_knee() -> None:
    points = [
        {"num_devices": 1, "tokens_per_second": 100.0, "low": 100.0, "high": 100.0, "origin": "measured"},
        {"num_devices": 4, "tokens_per_second": 300.0, "low": 200.0, "high": 320.0, "origin": "projected"},
    ]
    knee = {"num_devices": 4, "cause": "communication", "sentence": "it waits"}
    plot = curves.scaling_curve(points, knee=knee)
    assert {"1 device", "4 devices", "knee: 4 (communication)"} <= set(_texts(plot))
    assert plot.count('class="band"') == 2
    assert plot.count("<circle") == 1


@pytest.mark.parametrize(
    "plot",
    [
        plots.step_strip([], median=None, p95=None),
        plots.throughput_bars({}, ideal=None, num_devices=0),
        plots.stacked_bar([], label=""),
        curves.probability_curve([], reservations=[], target=0.9),
        curves.scaling_curve([], knee={}),
    ],
    ids=["steps", "throughput", "stack", "probability", "scaling"],
)
def test_nothing_to_draw(plot: Markup) -> None:
    assert plot == ""


def test_names_are_escaped() -> None:
    hostile = "<script>&\"'"
    plot = plots.throughput_bars({hostile: 1.0}, ideal=None, num_devices=1)
    assert "<script" not in plot
    assert _texts(plot)[0] == hostile
