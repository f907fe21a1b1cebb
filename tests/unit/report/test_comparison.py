"""Two studies side by side: what is noise and what is not, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pilotkit.report.comparison import differences, render_comparison


@pytest.mark.parametrize(("factor", "beyond"), [(1.0, False), (1.005, False), (1.02, True), (0.98, True)])
def test_a_step_is_beyond_noise_past_two_standard_errors(
    sample: dict[str, Any], tmp_path: Path, factor: float, beyond: bool
) -> None:
    # Spread 1.1 % of 30 steps each: 2 x sqrt(2) x 0.011 / sqrt(30) = 0.57 %.
    one, other = sample["go_records"](tmp_path), sample["go_records"](tmp_path)
    other["measure"].metrics["step_seconds"] *= factor
    row = next(row for row in differences(one, other) if (row.stage, row.label) == ("measure", "step, median"))
    assert row.noise == pytest.approx(0.00568, abs=1e-5)
    assert row.beyond_noise is beyond


def test_what_was_read_once_is_never_called_a_difference(sample: dict[str, Any], tmp_path: Path) -> None:
    one, other = sample["go_records"](tmp_path), sample["go_records"](tmp_path)
    other["restore"].metrics["restart_seconds"] *= 3
    row = next(row for row in differences(one, other) if (row.stage, row.label) == ("restore", "restart"))
    assert (row.change, row.beyond_noise, row.noise) == ("+200.0 %", False, None)


def test_settings_are_no_results(sample: dict[str, Any], tmp_path: Path) -> None:
    records = sample["go_records"](tmp_path)
    assert "memory limit" not in {row.label for row in differences(records, records)}


def test_the_page_escapes_and_says_what_differs(sample: dict[str, Any], tmp_path: Path) -> None:
    one, other = sample["go_records"](tmp_path), sample["no_go_records"](tmp_path)
    hostile = sample["HOSTILE"]
    page = render_comparison(list(one.values()), list(other.values()), names=("a", hostile))
    assert page.count("<script") == 1
    assert ">GO<" in page
    assert ">NO-GO<" in page
    assert "figures differ by more than noise" in page or "No figure differs" in page
