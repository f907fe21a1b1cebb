"""Loss curves: where the lines lie, what is left out, and that names of precisions stay text."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from pilotkit.records.record import Record
from pilotkit.report.losses import Series, loss_curves, precision_losses, restored_losses


def _record(stage: str, details: dict[str, Any]) -> Record:
    return Record(f"{stage}-1", stage, "ok", "2026-03-01", details=details)


def _of_class(plot: str, tag: str, css: str) -> list[dict[str, str]]:
    return [shape.attrib for shape in ElementTree.fromstring(plot).iter(tag) if css in shape.get("class", "").split()]


def test_lines_are_to_scale() -> None:
    plot = loss_curves([Series("a", [(1, 4.0), (2, 3.0), (3, 2.0)], 0), Series("b", [(3, 2.0)], 1, dots=True)])
    first, second = _of_class(plot, "line", "stroke-0")
    assert (first["x1"], first["x2"], second["x2"]) == ("8.000%", "53.000%", "98.000%")
    assert (first["y1"], first["y2"], second["y2"]) == ("12.0", "92.0", "172.0")
    (dot,) = _of_class(plot, "circle", "series-1")
    assert (dot["cx"], dot["cy"]) == ("98.000%", "172.0")
    assert "Loss over steps 1 to 3: a, b" in plot


def test_a_step_without_a_finite_loss_is_a_gap() -> None:
    losses = [3.0, None, 2.0, 1.5, float("nan")]
    record = _record("numerics", {"reference": {"reference": {"losses": losses}}})
    figure = precision_losses(record, page_dir=Path())
    assert figure is not None
    (line,) = _of_class(figure.plot, "line", "stroke-0")
    assert line["y2"] == "172.0"
    assert figure.legend == [(0, "fp32", "1.5")]


def test_each_precision_has_its_line_and_chance_stands_behind() -> None:
    details = {
        "precision": {"name": "<b>fp8"},
        "reference": {"reference": {"losses": [3, 2, 1]}, "noise": [{"losses": [3, 3, 2]}, {"losses": [3, 2, 2]}]},
        "candidate": {"candidate": {"losses": [3, 2, 1.5]}},
    }
    figure = precision_losses(_record("numerics", details), page_dir=Path())
    assert figure is not None
    assert [len(_of_class(figure.plot, "line", f"stroke-{colour}")) for colour in (0, 1, 7)] == [2, 0, 4]
    # The candidate often lies upon fp32: dots leave both to be seen.
    assert len(_of_class(figure.plot, "circle", "series-1")) == 3
    assert [name for _, name, _ in figure.legend] == ["fp32, other rows", "fp32", "<b>fp8"]
    assert "<b>" not in figure.plot
    assert figure.origin == "measured"


def test_a_restored_run_lies_on_the_one_that_never_stopped() -> None:
    steps = [{"step": number, "loss": 5.0 - number} for number in range(1, 5)]
    record = _record(
        "restore",
        {"steps": {"restore_uninterrupted": steps, "restore_before": steps[:2], "restore_after": steps[2:]}},
    )
    figure = restored_losses(record, page_dir=Path())
    assert figure is not None
    lines = _of_class(figure.plot, "line", "stroke-0")
    on_line = {(line["x2"], line["y2"]) for line in lines} | {(lines[0]["x1"], lines[0]["y1"])}
    dots = [dot for colour in (1, 2) for dot in _of_class(figure.plot, "circle", f"series-{colour}")]
    assert {(dot["cx"], dot["cy"]) for dot in dots} == on_line
    assert [name for _, name, _ in figure.legend] == ["never stopped", "before the stop", "restored"]


def test_nothing_to_draw() -> None:
    assert loss_curves([]) == ""
    assert restored_losses(_record("restore", {}), page_dir=Path()) is None
    assert precision_losses(_record("numerics", {}), page_dir=Path()) is None
