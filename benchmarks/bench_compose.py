"""How long pilotkit takes from the command line to the stage, against a bare Hydra application. Aim: under 1.3 times.

    python benchmarks/bench_compose.py [--pairs 15]

The bare application is `@hydra.main` over a copy of the same option files and an empty function. pilotkit is given an
output folder that cannot be made, so that it ends where its stage would begin: imports, composition, typing and every
check of the configuration are behind it. Runs come in pairs, first one then the other in turn, so that a change of the
machine's speed meets both. Exits 1 when the median of the pairs' ratios misses the aim.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import describe

ROOT = Path(__file__).resolve().parents[1]
LIMIT_RATIO = 1.3
BARE_APPLICATION = """
import hydra

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    pass

if __name__ == "__main__":
    main()
"""


def write_bare_application(folder: Path) -> Path:
    """A Hydra application with pilotkit's groups and none of its code; returns its file."""
    shutil.copytree(ROOT / "conf", folder / "conf")
    config = folder / "conf" / "config.yaml"
    lines = config.read_text(encoding="utf-8").splitlines(keepends=True)
    config.write_text("".join(line for line in lines if line.strip() != "- schema"), encoding="utf-8")
    application = folder / "application.py"
    application.write_text(BARE_APPLICATION, encoding="utf-8")
    return application


def seconds_of(command: list[str], *, cwd: Path, expected: tuple[int, str]) -> float:
    """Wall time of one process, seconds; checks that it ended as expected (exit code, part of what it wrote)."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(cwd / "pycache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.perf_counter()
    result = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    returncode, text = expected
    output = result.stdout + result.stderr
    assert result.returncode == returncode, output
    assert text in output, output
    return seconds


def main() -> int:
    """Run the pairs; prints both medians and the median ratio with its quartiles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    options = parser.parse_args()
    print(describe("hydra-core", "omegaconf"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        not_a_folder = folder / "file"
        not_a_folder.touch()
        commands = {
            "bare": [sys.executable, str(write_bare_application(folder))],
            "ours": [sys.executable, "-m", "pilotkit", "stage=plan", f"output_dir={not_a_folder}"],
        }
        expected = {"bare": (0, ""), "ours": (1, "cannot be written")}
        seconds: dict[str, list[float]] = {"bare": [], "ours": []}
        for pair in range(options.pairs + 1):
            for which in ("bare", "ours") if pair % 2 else ("ours", "bare"):
                seconds[which].append(seconds_of(commands[which], cwd=folder, expected=expected[which]))
    # The first pair compiles the byte code.
    pairs = list(zip(seconds["ours"][1:], seconds["bare"][1:], strict=True))
    ours, bare = (statistics.median(times) for times in zip(*pairs, strict=True))
    low, ratio, high = statistics.quantiles([ours_seconds / bare_seconds for ours_seconds, bare_seconds in pairs], n=4)
    verdict = "within" if ratio < LIMIT_RATIO else "OVER"
    print(
        f"compose: bare Hydra {bare:.2f} s, pilotkit {ours:.2f} s, ratio {ratio:.2f}, "
        f"quartiles {low:.2f} to {high:.2f}, {len(pairs)} pairs ({verdict} the limit of {LIMIT_RATIO})"
    )
    return int(ratio >= LIMIT_RATIO)


if __name__ == "__main__":
    sys.exit(main())
