"""The sweep map: one cell a point, nothing in between."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from pilotkit.report.heatmap import sweep_map


def _rects(plot: str, css: str) -> list[Any]:
    return [shape for shape in ElementTree.fromstring(plot).iter("rect") if shape.get("class") == css]


def test_every_point_has_a_cell(sample: dict[str, Any], tmp_path: Path) -> None:
    plot = sweep_map(sample["sweep_records"](tmp_path))
    assert len(_rects(plot, "data")) == 8
    assert len(_rects(plot, "fault")) == 1
    shades = [float(shape.get("fill-opacity")) for shape in _rects(plot, "data")]
    assert (min(shades), max(shades)) == (0.10, 0.55)
    assert "no fit" in plot


def test_a_point_nobody_ran_says_so(sample: dict[str, Any], tmp_path: Path) -> None:
    plot = sweep_map(sample["sweep_records"](tmp_path)[:-1])
    assert len(_rects(plot, "track")) == 1
    assert "not run" in plot


def test_the_fastest_stands_for_a_shared_cell(sample: dict[str, Any], tmp_path: Path) -> None:
    slow, other = sample["sweep_records"](tmp_path)[:2]
    fast = sample["sweep_records"](tmp_path)[0]
    fast.metrics["tokens_per_second"] = 9000.0
    for order in ([slow, fast, other], [fast, slow, other]):
        plot = sweep_map(order)
        assert "9 k" in plot
        assert "1.31 k" not in plot


def test_one_point_is_no_map(sample: dict[str, Any], tmp_path: Path) -> None:
    records = sample["sweep_records"](tmp_path)[:1]
    assert sweep_map(records) == ""
    records[0].config = {}
    assert sweep_map(records) == ""
