"""Print what a CI run really ran: counts by folder from pytest's JUnit file, and the versions it ran with.

Called by `.ci/run` at its end. Exits 1 when there is no result file or it holds no test that passed.
"""

from __future__ import annotations

import platform
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from xml.etree import ElementTree

PACKAGES = ("pilotkit", "torch", "hydra-core", "omegaconf", "numpy", "pytest")
OUTCOMES = {"failure": "failed", "error": "error", "skipped": "skipped"}
COLUMNS = ("passed", "failed", "error", "skipped")


def count(results: Sequence[Path]) -> dict[str, Counter[str]]:
    """Outcomes of the tests in each folder below tests/; their milliseconds are added up beside them."""
    folders: dict[str, Counter[str]] = {}
    cases = (case for path in results for case in ElementTree.parse(path).iter("testcase"))  # noqa: S314 - pytest's files
    for case in cases:
        folder = "/".join(case.get("classname", "").split(".")[:2])
        outcome = next((OUTCOMES[child.tag] for child in case if child.tag in OUTCOMES), "passed")
        folders.setdefault(folder, Counter()).update(
            {outcome: 1, "milliseconds": round(1000 * float(case.get("time", 0)))}
        )
    return folders


def main(results: Sequence[Path]) -> int:
    """Print the versions and the table; the exit code says whether anything passed."""
    print(f"\nPython {platform.python_version()}, {platform.platform()}")
    for package in PACKAGES:
        try:
            print(f"  {package} {version(package)}")
        except PackageNotFoundError:
            print(f"  {package} not installed")
    missing = [path for path in results if not path.exists()]
    if missing:
        print(f"no test results: {', '.join(map(str, missing))} was not written")
    results = [path for path in results if path.exists()]
    folders = count(results)
    print(f"{'folder':<24}" + "".join(f"{column:>9}" for column in (*COLUMNS, "seconds")))
    for folder, counts in sorted(folders.items()):
        numbers = "".join(f"{counts[column]:>9}" for column in COLUMNS)
        print(f"{folder:<24}{numbers}{counts['milliseconds'] / 1000:>9.1f}")
    return 0 if not missing and any(counts["passed"] for counts in folders.values()) else 1


if __name__ == "__main__":
    sys.exit(main([Path(argument) for argument in sys.argv[1:]]))
