"""What each fault gives on a real Slurm, and how long it takes until it is known: the table of docs/slurm.md.

    python benchmarks/slurm_faults.py [--write] [--report FILE ... | TEST ...]

Runs the Slurm tests (all of them, or those named) on clusters of their own, needs what they need, and prints one row
for each fault that they tell of. The seconds run from the event to the moment in which another process reads the truth;
`with the record`: nothing was waited for beyond the end of the job. --report reads what `pytest --junitxml` has left
instead of running them. --write puts the table between the marks in docs/slurm.md; a test that fails is no row, and
makes the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from machine import describe

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "slurm.md"
BEGIN, END = "<!-- faults: made by benchmarks/slurm_faults.py --write -->", "<!-- end of faults -->"
TOLD_BY = ("test_faults.py", "test_attempts.py", "test_nodes.py", "test_enforced.py", "test_sweeps.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--report", type=Path, nargs="+")
    parser.add_argument("tests", nargs="*", default=[str(ROOT / "tests" / "slurm" / name) for name in TOLD_BY])
    given = parser.parse_args()
    code, rows = (0, [row for path in given.report for row in read_rows(path)]) if given.report else run(given.tests)
    table = "\n".join(
        [describe("submitit"), "", "| event | truth | seconds until it is known |", "|---|---|---|", *rows]
    )
    print(table)
    if given.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
    return code


def run(tests: Sequence[str]) -> tuple[int, list[str]]:
    """The exit code of the tests, and their rows."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", f"--junitxml={report}", *tests]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        return code, read_rows(report)


def read_rows(report: Path) -> list[str]:
    """The rows of the tests that passed, in the order in which they ran."""
    rows = []
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            continue
        for item in case.iter("property"):
            if item.get("name", "").startswith("fault-"):
                fault = json.loads(item.get("value", "{}"))
                seconds = "with the record" if fault["seconds"] is None else f"{fault['seconds']:.1f}"
                rows.append(f"| {fault['event']} | {fault['truth']} | {seconds} |")
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
