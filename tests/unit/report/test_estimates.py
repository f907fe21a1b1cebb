"""Estimates as people see them: the plot over the step, the answers, and what was measured beside them."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from pilotkit.report.estimate_tables import answer_rows, comparison_rows
from pilotkit.report.estimates import memory_over_the_step
from pilotkit.units import GIB

PROFILE = [
    {"moment": moment, "live_bytes": size * GIB}
    for moment, size in (("forward", 1), ("forward", 2), ("backward", 4), ("optimizer", 3))
]


def test_memory_over_the_step_is_to_scale_and_marks_what_is_too_much() -> None:
    plot = ElementTree.fromstring(memory_over_the_step(PROFILE, limit=3.5 * GIB))
    bars = list(plot.iter("rect"))
    assert [float(bar.attrib["height"]) for bar in bars] == pytest.approx([30, 60, 120, 90])
    assert [bar.attrib["class"] for bar in bars] == ["data", "data", "fault", "data"]
    texts = [text.text for text in plot.iter("text")]
    assert texts == ["forward", "backward", "optimizer", "highest 4.00 GiB", "device 3.50 GiB"]


def test_a_limit_far_above_is_left_out() -> None:
    plot = ElementTree.fromstring(memory_over_the_step(PROFILE, limit=80 * GIB))
    assert not [line for line in plot.iter("line") if line.attrib["class"] == "limit"]


def test_answers_in_words() -> None:
    details: dict[str, Any] = {
        "answers": {
            "largest_micro_batch": [{"seq_len": 64, "micro_batch_size": 0, "held_bytes": None, "bounded_by": "memory"}],
            "longest_sequence": [
                {"micro_batch_size": 2, "seq_len": 1024, "held_bytes": GIB, "bounded_by": "the model"}
            ],
        }
    }
    found = {title: rows for title, _, rows in answer_rows(details)}
    assert found == {
        "Largest micro-batch that fits": [["64", "none", "", "memory"]],
        "Longest sequence that fits": [["2", "1024", "1.00 GiB", "the model"]],
    }


def test_a_comparison_says_what_is_left_and_where_most_of_it_lies() -> None:
    row = {
        "source": "measure 1",
        "family": "gpt",
        "shape": "single, 2 x 64",
        "step_estimated_seconds": 1.0,
        "step_corrected_seconds": 2.0,
        "step_measured_seconds": 2.1,
        "attributed_seconds": {"matmul": 0.9, "elementwise": 0.1, "unexplained": 0.1},
        "held_out_error": None,
        "allocated_corrected_bytes": 100,
        "allocated_measured_bytes": 101,
    }
    columns, (cells,) = comparison_rows([row])
    found = dict(zip(columns[2:], cells[2:], strict=True))
    assert found == {
        "step: estimated": "1.00 s",
        "corrected": "2.00 s",
        "measured": "2.10 s",
        "left": "+5.0 %",
        "held out": "",
        "memory left": "allocated +1.0 %",
        "lies in": "matmul 900.0 ms",
    }
    # errors are kept as logarithms, and read as shares
    for error, words in ((math.log(2), "+100.0 %"), (math.log(0.5), "-50.0 %")):
        _, (cells,) = comparison_rows([{**row, "held_out_error": error}])
        assert cells[columns.index("held out")] == words
