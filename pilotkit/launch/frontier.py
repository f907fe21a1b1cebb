"""`hydra/sweeper=frontier`: for each choice of the rest the largest micro-batch that fits, without the whole grid.

Called by the sweeper plugin. Every round runs one point for each search that is still open, all of them as one batch of
whatever launcher there is; with Slurm it waits for the batch. Points that an earlier sweep has answered cost nothing
there, so that the same command goes on where it was ended.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from pilotkit.decide.frontier import Bisection
from pilotkit.errors import ConfigError, Problem
from pilotkit.launch.follow import local_truths, wait_for_all
from pilotkit.records.frontiers import Frontier, FrontierRow, write_frontier
from pilotkit.records.points import read_points
from pilotkit.records.sweeps import has_sweep
from pilotkit.records.truths import Truth


def search(sweeper: Any, arguments: Sequence[str]) -> list[Any]:
    """Run the rounds; returns what the launcher returned for each of them. `sweeper` is set up as Hydra does it."""
    parser = OverridesParser.create(config_loader=sweeper.hydra_context.config_loader)
    overrides = parser.parse_overrides([*sweeper._parse_config(), *arguments])
    values = _values([item for item in overrides if item.key_or_group == sweeper.over], over=sweeper.over)
    others = [item for item in overrides if item.key_or_group != sweeper.over]
    grid = sweeper.split_arguments(others, None)[0]
    searches = [Bisection(values) for _ in grid]
    varying = {item.get_key_element() for item in others if item.is_sweep_override()}
    sweep_dir = Path(str(sweeper.config.hydra.sweep.dir)).absolute()
    returns: list[Any] = []
    first_index = 0
    while any(one.next_value is not None for one in searches):
        open_ones = [number for number, one in enumerate(searches) if one.next_value is not None]
        batch = [[*grid[number], f"{sweeper.over}={searches[number].next_value}"] for number in open_ones]
        _say(f"round {len(returns) + 1}: {len(batch)} points, {sweeper.over} " + _shown(searches, open_ones))
        returns.append(sweeper.launcher.launch(batch, initial_job_idx=first_index))
        endings = _endings(sweep_dir)
        for offset, number in enumerate(open_ones):
            searches[number].hear(*endings.get(first_index + offset, ("vanished", "it left no trace")))
        first_index += len(batch)
        rows = [
            FrontierRow(
                [word for word in fixed if word.partition("=")[0] in varying],
                one.largest,
                one.smallest_misfit,
                one.words(),
            )
            for fixed, one in zip(grid, searches, strict=True)
        ]
        write_frontier(sweep_dir, Frontier(sweeper.over, list(values), first_index, len(values) * len(grid), rows))
    return returns


def _values(given: Sequence[Override], *, over: str) -> list[int]:
    """The values to search, ascending. Raises ConfigError when there is nothing to bisect."""
    fix = f"for example {over}=1,2,4,8,16,32, or {over}=range(1,65)"
    allowed = "several different whole numbers, of which the largest that fits is to be found"
    last = given[-1] if given else None  # of one key that is given twice Hydra takes the last
    if last is None or not last.is_discrete_sweep():
        shown = str(last.input_line).partition("=")[2] if last else "not given"
        raise ConfigError([Problem(over, shown, allowed, fix, ("hydra/sweeper",))])
    texts = list(last.sweep_string_iterator())
    if not all(text.isdigit() for text in texts):
        raise ConfigError([Problem(over, ",".join(texts), allowed, fix, ("hydra/sweeper",))])
    return sorted({int(text) for text in texts})


def _endings(sweep_dir: Path) -> dict[int, tuple[str, str]]:
    """(status, cause) of every point so far; with Slurm once all of them are over."""
    truths = _wait(sweep_dir) if has_sweep(sweep_dir) else local_truths(read_points(sweep_dir))
    return {truth.point.index: (truth.status, truth.cause) for truth in truths}


def _wait(sweep_dir: Path) -> list[Truth]:
    last = ""

    def show(truths: Sequence[Truth]) -> None:
        nonlocal last
        waiting = sum(not truth.is_final for truth in truths)
        words = f"  {len(truths) - waiting} of {len(truths)} points are over"
        if words != last:
            _say(words)
        last = words

    try:
        return wait_for_all(sweep_dir, show=show)
    except KeyboardInterrupt:
        _say("the jobs of this round go on; the same command goes on from what they find")
        raise


def _shown(searches: Sequence[Bisection], places: Sequence[int]) -> str:
    return ", ".join(dict.fromkeys(str(searches[place].next_value) for place in places))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
