"""The page of a sweep and its flat table."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from pilotkit.records.frontiers import Frontier, FrontierRow
from pilotkit.records.record import Failure, Record
from pilotkit.report.points import point_rows, to_csv, write_parquet
from pilotkit.report.sweep_page import best_points, render_sweep_page

VARYING = ["train.micro_batch_size", "train.seq_len"]


def point(batch: int, length: int, status: str, **metrics: float) -> Record:
    config = {"hardware": {"name": "h100"}, "train": {"micro_batch_size": batch, "seq_len": length}}
    overrides = [f"train.micro_batch_size={batch}", f"train.seq_len={length}"]
    problem = None if status == "ok" else Failure("<b>why")
    return Record(
        f"{batch}-{length}",
        "measure",
        status,
        "2026",
        config=config,
        metrics=metrics,
        problem=problem,
        overrides=overrides,
    )


POINTS = [
    point(1, 64, "ok", tokens_per_second=10.0),
    point(2, 64, "does_not_fit"),
    point(1, 128, "ok", tokens_per_second=30.0),
    point(2, 128, "node_failed"),
]


def test_the_page_draws_the_frontier_and_escapes_reasons(tmp_path: Path) -> None:
    page = render_sweep_page(POINTS, varying=VARYING, title="t", counts="4 points", page_dir=tmp_path)
    assert page.count('class="frontier"') == 2  # one in each map
    assert "&lt;b&gt;why" in page
    assert "<b>why" not in page
    assert "node failed" in page


def test_the_best_point_is_the_fastest_that_was_measured() -> None:
    assert [(name, text) for name, _, text in best_points(POINTS, varying=VARYING)] == [
        ("h100", "train.micro_batch_size=1 train.seq_len=128")
    ]


def test_the_table_keeps_every_point_and_leaves_empty_what_is_missing(tmp_path: Path) -> None:
    more = [{"index": index} for index in range(len(POINTS))]
    columns, rows = point_rows(POINTS, varying=VARYING, more=more)
    read = list(csv.DictReader(io.StringIO(to_csv(columns, rows))))
    assert [row["status"] for row in read] == ["ok", "does_not_fit", "ok", "node_failed"]
    assert [row["tokens_per_second"] for row in read] == ["10.0", "", "30.0", ""]
    assert write_parquet(tmp_path / "points.parquet", columns, rows)
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(tmp_path / "points.parquet")
    assert table.column("train.seq_len").to_pylist() == [64, 64, 128, 128]
    assert table.column("tokens_per_second").to_pylist() == [10.0, None, 30.0, None]


def test_what_a_search_found_is_told_and_escaped(tmp_path: Path) -> None:
    frontier = Frontier(
        "train.micro_batch_size",
        [1, 2, 4],
        num_tried=4,
        num_grid=6,
        rows=[FrontierRow(["data=<b>"], 2, 4, "2 (4 does not fit)"), FrontierRow([], None, 1, "none: 1 does not fit")],
    )
    page = render_sweep_page(
        POINTS, varying=VARYING, title="study", counts="4 points", page_dir=tmp_path, frontier=frontier
    )
    assert "4 of 6 points were run, 2 were saved" in page
    assert "data=&lt;b&gt;" in page
    assert "2 (4 does not fit)" in page
    assert "all else as given" in page
