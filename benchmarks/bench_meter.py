"""What metering costs: a training step under StepMeter against the bare loop, paired. Aim: at most 1 %.

    python benchmarks/bench_meter.py [--max-rounds 4000] [--planted 0.02]

A round is four steps of the same model: bare, metered, metered, bare, or the other way round by chance, so that what
drifts meanwhile falls on both alike. Each round gives one ratio; rounds go on until the 95 % interval of their median
lies on one side of the aim, or says how far it came. Processor time is judged, as wall time of a shared machine says
more about its neighbours; wall time stands beside it. `--planted 0.02` makes the metered step burn 2 % more, to see it
missed. Also against torch.profiler in the same run: the step time that StepMeter tells and the one the profiler saw.
Exits 1 when an aim is missed, or when it could not be told.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from machine import describe
from torch import nn

from pilotkit.meter import StepMeter
from pilotkit.meter.statistics import median_interval

LIMIT = 0.01
PROFILER_LIMIT = 0.01
ROUNDS_AT_ONCE = 100


def build_step() -> Callable[[], None]:
    """A step of some ten milliseconds on one thread: small for a real run, so that an overhead shows."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(512, 256)

    def step() -> None:
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@dataclass
class Times:
    """Seconds of one step: of this processor, and by the clock on the wall."""

    processor: float
    wall: float


def timed(work: Callable[[], None]) -> Times:
    """One call of `work`."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return Times(time.process_time() - processor, time.perf_counter() - wall)


def burn(seconds: float) -> None:
    """Take processor time, as an instrument would."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def one_round(bare: Callable[[], None], metered: Callable[[], None]) -> tuple[float, float]:
    """Metered over bare, `(processor, wall)`, of two steps each in an order that cancels a steady drift."""
    order = [bare, metered, metered, bare] if random.random() < 0.5 else [metered, bare, bare, metered]
    sums = {work: Times(0.0, 0.0) for work in (bare, metered)}
    for work in order:
        took = timed(work)
        sums[work].processor += took.processor
        sums[work].wall += took.wall
    return sums[metered].processor / sums[bare].processor, sums[metered].wall / sums[bare].wall


def against_profiler(step: Callable[[], None], num_steps: int) -> float:
    """Relative difference of a step in StepMeter and in torch.profiler, the median over the same steps."""
    meter = StepMeter(tokens_per_step=1, num_warmup_steps=0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(num_steps):
            with meter.step(), torch.profiler.record_function("whole step"):
                step()
    seen = [event.time_range.elapsed_us() / 1e6 for event in profiler.events() if event.name == "whole step"]
    told = meter.close()["step_seconds"]
    return statistics.median(one / other for one, other in zip(told, seen, strict=True)) - 1


def main() -> int:
    """Run the rounds, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-rounds", type=int, default=4000)
    parser.add_argument("--planted", type=float, default=0.0, help="share of a step that the metered one burns besides")
    options = parser.parse_args()
    print(describe("torch"))
    step, meter = build_step(), StepMeter(tokens_per_step=1, num_warmup_steps=0)
    for _ in range(5):
        step()
    length = statistics.median(timed(step).processor for _ in range(20))

    def metered() -> None:
        with meter.step(), meter.section("all"):
            step()
        if options.planted:
            burn(options.planted * length)

    random.seed(0)
    processor: list[float] = []
    wall: list[float] = []
    low, high = 0.0, float("inf")
    while len(processor) < options.max_rounds and low <= 1 + LIMIT <= high:
        for _ in range(ROUNDS_AT_ONCE):
            ratios = one_round(step, metered)
            processor.append(ratios[0])
            wall.append(ratios[1])
        low, high = median_interval(processor) or (low, high)
    profiler = against_profiler(step, 40)
    verdict = "held" if high < 1 + LIMIT else "MISSED" if low > 1 + LIMIT else "COULD NOT BE TOLD"
    if abs(profiler) > PROFILER_LIMIT:
        verdict = "MISSED (step time)"
    print(
        f"metered step: {statistics.median(processor) - 1:+.2%} over the bare loop in processor time (95 % interval "
        f"{low - 1:+.2%} to {high - 1:+.2%}, {len(processor)} rounds of four steps of {length * 1e3:.1f} ms), "
        f"{statistics.median(wall) - 1:+.2%} by the wall clock, limit {LIMIT:.0%}; step time {profiler:+.2%} off "
        f"torch.profiler's, limit {PROFILER_LIMIT:.0%}: {verdict}"
    )
    return int(verdict != "held")


if __name__ == "__main__":
    sys.exit(main())
