"""The rounds of a search: which points are run, and what is kept; the launcher is a stand-in that knows what fits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra._internal.core_plugins import basic_sweeper

from pilotkit.errors import ConfigError
from pilotkit.launch.frontier import search
from pilotkit.records.frontiers import read_frontier
from pilotkit.records.points import Point, write_point
from pilotkit.records.record import Failure, Record
from pilotkit.records.run_dir import RunDir

OVER = "train.micro_batch_size"


class Launcher:
    """A point fits up to the size that is given for its sequence length; None: it fails."""

    def __init__(self, sweep_dir: Path, largest: dict[str, int | None]) -> None:
        self.sweep_dir, self.largest = sweep_dir, largest
        self.rounds: list[list[str]] = []

    def launch(self, batch: Sequence[Sequence[str]], initial_job_idx: int) -> list[str]:
        self.rounds.append([" ".join(overrides[-2:]) for overrides in batch])
        for index, overrides in enumerate(batch, initial_job_idx):
            given = dict(word.split("=") for word in overrides)
            largest = self.largest[given["train.seq_len"]]
            fits = largest is not None and int(given[OVER]) <= largest
            status = "failed" if largest is None else "ok" if fits else "does_not_fit"
            run_dir = RunDir.create(self.sweep_dir / "out", name="n", stage="measure")
            problem = Failure("rank 0: x") if status == "failed" else None
            run_dir.write_record(Record(run_dir.run_id, "measure", status, "2026", problem=problem))
            write_point(self.sweep_dir / str(index), Point(index, list(overrides), run_dir=str(run_dir.path)))
        return ["ran"]


def sweeper(folder: Path, largest: dict[str, int | None]) -> Any:
    # Looked up anew: when Hydra scans its plugins it runs the module once more, in place, and makes another class.
    found: Any = basic_sweeper.BasicSweeper(max_batch_size=None)
    found.over = OVER
    found.hydra_context = SimpleNamespace(config_loader=None)
    found.config = SimpleNamespace(hydra=SimpleNamespace(sweep=SimpleNamespace(dir=str(folder))))
    found.launcher = Launcher(folder, largest)
    return found


def test_every_round_has_a_point_of_each_open_search(tmp_path: Path) -> None:
    found = sweeper(tmp_path, {"16": 5, "32": 0, "64": None})
    # Of a key that is given twice the last counts, as Hydra has it.
    search(found, ["stage=measure", f"{OVER}=1", "train.seq_len=16,32,64", f"{OVER}=range(1,8)"])
    assert found.launcher.rounds == [
        [f"train.seq_len=16 {OVER}=4", f"train.seq_len=32 {OVER}=4", f"train.seq_len=64 {OVER}=4"],
        [f"train.seq_len=16 {OVER}=6", f"train.seq_len=32 {OVER}=2"],
        [f"train.seq_len=16 {OVER}=5", f"train.seq_len=32 {OVER}=1"],
    ]
    frontier = read_frontier(tmp_path)
    assert frontier is not None
    assert frontier.sentence == "7 of 21 points were run, 14 were saved"
    assert frontier.lines() == [
        ("train.seq_len=16", "5 (6 does not fit)"),
        ("train.seq_len=32", "none: 1 does not fit"),
        ("train.seq_len=64", "not known; 4 failed: rank 0: x"),
    ]


@pytest.mark.parametrize("given", [[], [f"{OVER}=4"], [f"{OVER}=1,2", f"{OVER}=4"]], ids=["none", "one", "one at last"])
def test_nothing_to_search(tmp_path: Path, given: list[str]) -> None:
    found = sweeper(tmp_path, {"16": 5})
    with pytest.raises(ConfigError, match="of which the largest that fits is to be found"):
        search(found, ["train.seq_len=16", *given])
    assert found.launcher.rounds == []
