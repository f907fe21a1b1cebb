"""How long ten thousand draws of the time to finish take, from 1 to 16,384 devices. Aim: under 2 seconds each.

    python benchmarks/bench_finish.py [--draws 10000] [--repeats 5]

Exits 1 when the median of any size misses the aim.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from machine import describe

from pilotkit.decide.failures import FailureModel
from pilotkit.decide.finish import Work, simulate

LIMIT_SECONDS = 2.0
DAY = 86400.0


def main() -> int:
    """Draw `repeats` times for every size; one line a size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(describe("numpy"))
    fleet = FailureModel("typical", 5e-3, 2e-3, 2e-2, small_job_factor=3)
    missed = False
    for num_devices in (1, 8, 1024, 16384):
        work = Work(
            work_seconds=30 * DAY,
            interval_seconds=3600,
            save_seconds=60,
            restart_seconds=600,
            failures_per_second=fleet.per_second(max(num_devices / 8, 1)),
            failure_sigma=fleet.sigma,
            speed_sigma=0.03,
            restart_spread=1.0,
            rerun_probability=0.1,
        )
        seconds = []
        for _ in range(options.repeats):
            started = time.perf_counter()
            simulate(work, num_draws=options.draws)
            seconds.append(time.perf_counter() - started)
        median = statistics.median(seconds)
        missed |= median > LIMIT_SECONDS
        print(f"{num_devices:6} devices: {options.draws} draws in {median:.3f} s (median of {options.repeats})")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
