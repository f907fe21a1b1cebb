"""What a frontier sweep found: one small file in the sweep's folder, beside its points.

<sweep folder>/frontier.json   which key was bisected, over which values, and what is known for each choice of the rest
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from pilotkit.records import atomic

FRONTIER_FILE = "frontier.json"


@dataclass
class FrontierRow:
    """One search: what was held fixed, and the largest value that fits, in words and as a number."""

    fixed: list[str]
    largest: int | None
    smallest_misfit: int | None
    words: str


@dataclass
class Frontier:
    """`num_tried` of the `num_grid` points that the whole grid has were run."""

    over: str
    values: list[int]
    num_tried: int
    num_grid: int
    rows: list[FrontierRow] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """What was saved."""
        return f"{self.num_tried} of {self.num_grid} points were run, {self.num_grid - self.num_tried} were saved"

    def lines(self) -> list[tuple[str, str]]:
        """(what was held fixed, what fits)."""
        return [(" ".join(row.fixed) or "all else as given", row.words) for row in self.rows]


def write_frontier(sweep_dir: Path, frontier: Frontier) -> None:
    """Publish what is known so far."""
    sweep_dir.mkdir(parents=True, exist_ok=True)
    atomic.write_json(sweep_dir / FRONTIER_FILE, dataclasses.asdict(frontier))


def read_frontier(sweep_dir: Path) -> Frontier | None:
    """None when this sweep was no search, or when the file cannot be read."""
    try:
        plain = json.loads((sweep_dir / FRONTIER_FILE).read_text(encoding="utf-8"))
        rows = [FrontierRow(**row) for row in plain.pop("rows")]
        return Frontier(**plain, rows=rows)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
