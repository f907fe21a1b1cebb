"""The largest micro-batch that fits, found on the cluster in rounds, and shown with the sweep."""

from __future__ import annotations

import pyarrow.parquet
from conftest import TINY


def test_a_frontier_is_found_without_the_whole_grid(lab) -> None:
    """Two searches over four sizes: two rounds of two points; the same command again needs no job."""
    command = (
        *("-m", "hydra/sweeper=frontier", *TINY, "+model.kwargs.most_rows=2"),
        *("train.micro_batch_size=range(1,5)", "train.seq_len=16,32"),
    )
    done = lab.pilotkit(*command, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    words = ["train.seq_len=16: 2 (3 does not fit)", "train.seq_len=32: 2 (3 does not fit)"]
    assert [line.strip() for line in done.stdout.splitlines() if line.startswith("  train.seq_len")] == words
    assert "4 of 8 points were run, 4 were saved" in done.stdout
    sweep = lab.newest()
    assert {status for status, _ in lab.truths(sweep)} == {"ok", "does_not_fit"}
    assert len(lab.manifest(sweep)["points"]) == 4
    again = lab.pilotkit(*command)
    assert again.returncode == 0, again.stderr
    assert words[0] in again.stdout
    assert {point["job_id"] for point in lab.manifest(lab.newest())["points"]} == {None}
    collected = lab.pilotkit("stage=sweep_collect", f"sweep.dir={sweep}")
    assert collected.returncode == 0, collected.stderr
    page = next(lab.folder.glob("outputs/*/sweep_collect/*/report.html")).read_text()
    assert "The largest train.micro_batch_size that fits" in page
    assert "2 (3 does not fit)" in page
    assert 'class="frontier"' in page, "the line in the map"
    table = pyarrow.parquet.read_table(next(lab.folder.glob("outputs/*/sweep_collect/*/points.parquet"))).to_pylist()
    sizes = sorted((row["train.seq_len"], row["train.micro_batch_size"], row["status"]) for row in table)
    assert sizes == [(length, size, end) for length in (16, 32) for size, end in ((2, "ok"), (3, "does_not_fit"))]
