"""Estimated step times against published ones: uncalibrated, and calibrated by runs of the same kind of device.

    python benchmarks/estimate_speed.py published_runs.csv

The efficiencies of conf/hardware come from rows like these, so three held-out figures stand beside theirs. *Fitted
elsewhere*: each source by efficiencies that the rows of all other sources give, and then also corrected by three rows
of its own: what a user meets on a machine of his own. *Three rows*: drawn by chance. A row is never judged by a
correction it had a part in. Nothing is measured here. `published.py` says which rows can be built.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe
from omegaconf import OmegaConf
from published import Published, read, tell_errors, words

from pilotkit.decide.calibration import MeasuredRun, calibrate
from pilotkit.decide.robust import Floats, heavy_tailed, least_squares
from pilotkit.decide.step_time import Efficiency, Rates, StepTime, estimate_step_time
from pilotkit.estimate.predict import predict, work_of

CONF = Path(__file__).resolve().parents[1] / "conf" / "hardware"
# As the table names devices: the option that stands for it, and its memory bandwidth where that is another part's.
DEVICES: dict[str, tuple[str, float | None]] = {
    "A100 SXM 80GB": ("a100", None),
    "A100 80GB": ("a100", None),
    "A100 SXM4 40GB": ("a100", 1.555e12),
    "a100_80gb": ("a100", None),
    "a100_40gb": ("a100", 1.555e12),
    "h100_80gb": ("h100", None),
    "H100 SXM 96GB": ("h100", 2.4e12),
    "8xH100 (Meta 96GB": ("h100", 2.4e12),
}
# Between nodes, of each device. 1,600 Gbit/s of a node are stated for llm-foundry's A100; the rest is assumed.
NETWORK = {"a100": 25e9, "h100": 50e9}
NUM_PER_NODE = 8
KERNEL_SECONDS = 5e-6
NUM_DRAWS = 60
NAMES = ("matmul", "attention", "elementwise", "link")
# How far an efficiency may lie from what another kind of device reaches, and what a class tells of a run (logarithms).
SIGMA, NOISE = 0.4, 0.05


@dataclass
class Line:
    """A row whose speed is known, and its estimate."""

    row: Published
    option: str
    """Of conf/hardware."""
    rates: Rates
    work: dict[str, list[dict[str, Any]]]
    seconds: float

    @property
    def source(self) -> str:
        """Tables of one page are one source."""
        return self.row.row["source_locator"].split('"')[0]

    @cached_property
    def time(self) -> StepTime:
        return self.at(efficiency_of(self.option))

    def at(self, efficiency: Efficiency) -> StepTime:
        return estimate_step_time(
            self.work, rates=self.rates, gradient_bytes=0, dp_replicate=self.row.num_devices, efficiency=efficiency
        )

    def error(self, time: StepTime) -> float:
        return time.step_seconds / self.seconds - 1


def main(path: str) -> None:
    print(describe("torch", "pilotkit"))
    lines = [line for row in read(path) if (line := line_of(row)) is not None]
    elsewhere = fitted_elsewhere(lines)
    print(f"Time of a step, {len(lines)} rows")
    for line in sorted(lines, key=lambda line: -abs(line.error(line.time))):
        name = line.row.row["id"]
        print(
            f"{words(line.row)} {line.option} {line.seconds:7.2f} s, estimated {line.time.step_seconds:7.2f} "
            f"{100 * line.error(line.time):+5.1f} %   fitted elsewhere {100 * elsewhere[name]:+5.1f} %"
        )
    tell_errors("efficiencies of conf/hardware", [line.error(line.time) for line in lines])
    tell_errors("fitted elsewhere", list(elsewhere.values()))
    for title, errors in calibrated(as_they_are(lines)):
        tell_errors(title, errors)
    for option in NETWORK:
        found = fitted([line for line in as_they_are(lines) if line.option == option], start=efficiency_of(option))
        print(f"{option}, all rows: " + ", ".join(f"{name} {getattr(found, name):.2f}" for name in NAMES))


def line_of(row: Published) -> Line | None:
    """None: no speed is given, or for a device that is not looked at. DDP is left out: its rows give no speed."""
    device = next((name for name in DEVICES if row.row["gpu"].startswith(name)), None)
    if device is None or row.tokens_per_second is None or row.strategy == "ddp":
        return None
    batch, seq_len = row.shape
    option, bandwidth = DEVICES[device]
    known = OmegaConf.load(CONF / f"{option}.yaml")
    link = float(known.link_bandwidth_bytes_per_second)
    if row.num_devices > NUM_PER_NODE:
        link = min(link, NUM_PER_NODE * NETWORK[option])
    rates = Rates(
        float(known.peak_flops.bf16), bandwidth or float(known.memory_bandwidth_bytes_per_second), link, KERNEL_SECONDS
    )
    work = work_of(predict(row.workload(), micro_batch_size=batch, seq_len=seq_len).trace)
    return Line(row, option, rates, work, batch * seq_len * row.grad_accum_steps / row.tokens_per_second)


def efficiency_of(option: str) -> Efficiency:
    known = OmegaConf.load(CONF / f"{option}.yaml").efficiencies
    return Efficiency(known.matmul, known.attention, known.bandwidth, known.link)


def fitted(lines: Sequence[Line], *, start: Efficiency) -> Efficiency:
    """The efficiencies that these rows ask for, drawn a little toward `start`; no single row decides."""

    def at(values: Floats) -> Efficiency:
        return Efficiency(
            **{name: getattr(start, name) * math.exp(value) for name, value in zip(NAMES, values, strict=True)}
        )

    def misses(values: Floats) -> Floats:
        errors = np.array([math.log1p(line.error(line.at(at(values)))) / NOISE for line in lines])
        return np.concatenate([heavy_tailed(errors), values / SIGMA])

    return at(least_squares(misses, np.zeros(len(NAMES))))


def fitted_elsewhere(lines: Sequence[Line]) -> dict[str, float]:
    """The error of each row with efficiencies that its own source had no part in."""
    return {
        line.row.row["id"]: line.error(line.at(efficiency))
        for option, source in sources_of(lines)
        if (efficiency := _elsewhere(lines, option, source))
        for line in lines
        if (line.option, line.source) == (option, source)
    }


def as_they_are(lines: Sequence[Line]) -> list[Line]:
    """Without the runs that compile: nothing is fitted to them, and corrections keep them apart."""
    return [line for line in lines if not line.row.is_compiled]


def sources_of(lines: Sequence[Line]) -> list[tuple[str, str]]:
    return sorted({(line.option, line.source) for line in lines})


def _elsewhere(lines: Sequence[Line], option: str, source: str) -> Efficiency:
    """Efficiencies of a device by all sources but one, starting from the other device's."""
    start = efficiency_of(next(other for other in NETWORK if other != option))
    away = [line for line in as_they_are(lines) if line.option == option and line.source != source]
    return fitted(away, start=start)


def calibrated(lines: Sequence[Line]) -> Iterator[tuple[str, list[float]]]:
    """Errors of rows that have no part in their correction."""
    strict, own, other, every = [], [], [], []
    chance = random.Random(0)
    for option, source in sources_of(lines):
        here = [line for line in lines if (line.option, line.source) == (option, source)]
        away = [line for line in lines if line.option == option and line.source != source]
        efficiency = _elsewhere(lines, option, source)
        draws = list(itertools.combinations(here, 3))
        for three in chance.sample(draws, min(NUM_DRAWS, len(draws))):
            rest = [line for line in here if line not in three]
            strict += _errors(three, rest, efficiency)
            own += _errors(three, rest)
            other += _errors(three, away)
        every += _errors(away, here)
    yield "fitted elsewhere, corrected by three rows of the own source", strict
    yield "corrected by three rows of the own source", own
    yield "corrected by three rows of another source", other
    yield "corrected by all rows of other sources", every


def _errors(known: Iterable[Line], asked: Iterable[Line], efficiency: Efficiency | None = None) -> list[float]:
    def time(line: Line) -> StepTime:
        return line.time if efficiency is None else line.at(efficiency)

    runs = [MeasuredRun(line.row.row["id"], time(line), line.seconds, None, None, None) for line in known]
    calibration = calibrate(runs, knows_device=True)
    return [line.error(calibration.step(time(line))) for line in asked]


if __name__ == "__main__":
    main(*sys.argv[1:])
