"""How long pilotkit takes from the command line to the stage, against a bare Hydra application. Aim: under 1.3 times.

    python benchmarks/bench_compose.py [--pairs 15]

The bare application is `@hydra.main` over a copy of the same option files and an empty function. pilotkit is stopped at
its first import of a stage: imports, composition, typing and every check of the configuration are behind it. Runs come
in pairs, first one then the other in turn. The ratio is of processor time, which other programs on the machine hardly
change; wall time is printed beside it. Exits 1 when the median ratio misses the aim.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from machine import describe

ROOT = Path(__file__).resolve().parents[1]
LIMIT_RATIO = 1.3

BARE_APPLICATION = """
import hydra

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    print("dispatched")

if __name__ == "__main__":
    main()
"""

STOPPED_AT_THE_STAGE = """
import sys

class StopAtStages:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("pilotkit.stages"):
            print("dispatched")
            raise SystemExit

sys.meta_path.insert(0, StopAtStages())

from pilotkit.cli import main

sys.exit(main())
"""


class Cost(NamedTuple):
    """What one process took, seconds."""

    wall: float
    processor: float


def write_applications(folder: Path) -> dict[str, Path]:
    """The bare application with pilotkit's groups and none of its code, and pilotkit with its stop; their files."""
    shutil.copytree(ROOT / "conf", folder / "conf")
    config = folder / "conf" / "config.yaml"
    lines = config.read_text(encoding="utf-8").splitlines(keepends=True)
    config.write_text("".join(line for line in lines if line.strip() != "- schema"), encoding="utf-8")
    applications = {"bare": folder / "bare.py", "ours": folder / "ours.py"}
    applications["bare"].write_text(BARE_APPLICATION, encoding="utf-8")
    applications["ours"].write_text(STOPPED_AT_THE_STAGE, encoding="utf-8")
    return applications


def cost_of(application: Path) -> Cost:
    """Run one application to its end, byte code cached beside it; checks that it came as far as it should."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(application.parent / "pycache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    result = subprocess.run(
        [sys.executable, application, "hardware=h100", "train.seq_len=1024"],
        cwd=application.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (result.returncode, result.stdout) == (0, "dispatched\n"), result.stdout + result.stderr
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> int:
    """Run the pairs; prints the medians of both and the median ratio with its quartiles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    options = parser.parse_args()
    print(describe("hydra-core", "omegaconf"))
    costs: dict[str, list[Cost]] = {"bare": [], "ours": []}
    with tempfile.TemporaryDirectory() as folder:
        applications = write_applications(Path(folder))
        for application in applications.values():
            cost_of(application)  # compiles the byte code
        for pair in range(options.pairs):
            for which in ("bare", "ours") if pair % 2 else ("ours", "bare"):
                costs[which].append(cost_of(applications[which]))
    for which, name in (("bare", "bare Hydra"), ("ours", "pilotkit")):
        wall = statistics.median(cost.wall for cost in costs[which])
        processor = statistics.median(cost.processor for cost in costs[which])
        print(f"compose: {name} {processor:.3f} s of processor time, {wall:.3f} s of wall time")
    pairs = zip(costs["ours"], costs["bare"], strict=True)
    low, ratio, high = statistics.quantiles([ours.processor / bare.processor for ours, bare in pairs], n=4)
    verdict = "within" if ratio < LIMIT_RATIO else "OVER"
    print(
        f"compose: ratio {ratio:.2f}, quartiles {low:.2f} to {high:.2f}, {options.pairs} pairs "
        f"({verdict} the limit of {LIMIT_RATIO})"
    )
    return int(ratio >= LIMIT_RATIO)


if __name__ == "__main__":
    sys.exit(main())
