"""What metering costs: a training step under StepMeter against the bare loop, paired. Aim: at most 1 %.

    python benchmarks/bench_meter.py [--pairs 400] [--steps 1]

Both loops train the same model; blocks of steps alternate, each pair in random order, so that what the machine does
meanwhile falls on both. Processor time is compared: wall time of a shared machine says more about its neighbours.
Also against torch.profiler in the same run: the step time that StepMeter tells and the one that the profiler saw.
Exits 1 when the median of the pairs misses the aim.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable

import torch
from machine import describe
from torch import nn

from pilotkit.meter import StepMeter

LIMIT = 0.01
PROFILER_LIMIT = 0.01


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


def bare(step: Callable[[], None], num_steps: int) -> float:
    """Processor seconds of one block without a meter."""
    start = time.process_time()
    for _ in range(num_steps):
        step()
    return time.process_time() - start


def metered(step: Callable[[], None], num_steps: int, meter: StepMeter) -> float:
    """Processor seconds of one block with the three lines of StepMeter and one section."""
    start = time.process_time()
    for _ in range(num_steps):
        with meter.step(), meter.section("all"):
            step()
    return time.process_time() - start


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
    """Run the pairs, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--steps", type=int, default=1)
    options = parser.parse_args()
    print(describe("torch"))
    step, meter = build_step(), StepMeter(tokens_per_step=1, num_warmup_steps=0)
    bare(step, options.steps)
    random.seed(0)
    ratios, lengths = [], []
    for _ in range(options.pairs):
        runs = [lambda: bare(step, options.steps), lambda: metered(step, options.steps, meter)]
        first = random.randrange(2)
        times = {first: runs[first]()}
        times[1 - first] = runs[1 - first]()
        ratios.append(times[1] / times[0])
        lengths.append(times[0] / options.steps)
    overhead = statistics.median(ratios) - 1
    low, _, high = statistics.quantiles(ratios, n=4)
    profiler = against_profiler(step, 40)
    held = overhead <= LIMIT and abs(profiler) <= PROFILER_LIMIT
    print(
        f"metered step: {overhead:+.2%} over the bare loop (quartiles {low - 1:+.2%} to {high - 1:+.2%}, "
        f"{options.pairs} pairs of {options.steps} steps of {statistics.median(lengths) * 1e3:.1f} ms), "
        f"limit {LIMIT:.0%}; step time {profiler:+.2%} off torch.profiler's, limit {PROFILER_LIMIT:.0%}: "
        f"{'held' if held else 'MISSED'}"
    )
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
