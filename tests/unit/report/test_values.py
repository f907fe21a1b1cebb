"""How a value reads, and the way to its record."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotkit.records.record import Record
from pilotkit.report.values import format_value, label_of, record_href, status_words, value_of


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("mfu", 0.4123, "41.2 %"),
        ("ddp_step_spread", 0.011, "1.1 %"),
        ("ddp_scaling_efficiency", 0.905, "90.5 %"),
        ("goodput", 1.0, "100.0 %"),
        ("first_loss", 5.54321, "5.5432"),
        ("max_loss_difference", 0.0, "0"),
        ("max_loss_difference", 1.25e-7, "1.25e-07"),
        ("gpu_hours", 12345.67, "12,345.7"),
        ("tokens_per_second_per_device", 1630.0, "1.63 k/s"),
        ("peak_allocated_bytes", 1536.0, "1.50 KiB"),
        ("num_params", 3_200_000.0, "3.2 M"),
    ],
)
def test_format_value(metric: str, value: float, text: str) -> None:
    assert format_value(metric, value) == text


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        ("peak_reserved_bytes", "peak reserved"),
        ("num_params", "parameters"),
        ("num_layers", "layers"),
        ("step_p95_seconds", "step, 95th percentile"),
        ("world_size", "world size"),
        ("all_reduce_seconds", "all reduce"),
        ("all_reduce_bytes", "all reduce data"),
        ("all_reduce_bytes_per_second", "all reduce bandwidth"),
        ("checkpoint_save_bytes_per_second", "checkpoint save bandwidth"),
        ("full_saved_bytes_per_second", "full saved per second added"),
    ],
)
def test_label_drops_the_unit(metric: str, label: str) -> None:
    assert label_of(metric) == label


def _record(folder: str) -> Record:
    return Record(
        "r-1", "prove", "ok", "2026-03-01", metrics={"a_bytes": 10.0}, origins={"a_bytes": "given"}, folder=folder
    )


@pytest.mark.parametrize(
    ("folder", "href"),
    [
        ("/out/study/prove/r-1", "../../prove/r-1/record.json"),
        ("/out/my study/prove/r-1", "../../../my%20study/prove/r-1/record.json"),
        ("/out/study/report/x/javascript:alert(1)", "javascript%3Aalert%281%29/record.json"),
        ("", None),
    ],
    ids=["beside", "spaces", "no scheme of its own", "no folder"],
)
def test_record_href_is_relative(folder: str, href: str | None) -> None:
    assert record_href(_record(folder), page_dir=Path("/out/study/report/x")) == href


def test_relative_folders_count_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page_dir = tmp_path / "outputs" / "study" / "report" / "x"
    href = record_href(_record("outputs/study/prove/r-1"), page_dir=page_dir)
    assert href == "../../prove/r-1/record.json"


def test_value_keeps_its_origin() -> None:
    value = value_of(_record(""), "a_bytes", page_dir=Path("/out"))
    assert (value.label, value.text, value.origin, value.href) == ("a", "10 B", "given", None)


def test_status_words() -> None:
    assert status_words("does_not_fit") == "does not fit"
