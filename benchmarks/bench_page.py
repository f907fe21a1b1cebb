"""How large is the page of a study with 200 records, and how soon is it there?

    python benchmarks/bench_page.py

Opens it in the system's Chromium (needs the `dev` extra), each time in a fresh context, beside an empty page. The time
is the browser's own, from the start of the navigation to the end of the load event (W3C Navigation Timing level 2).
Exits 1 when the page is larger than 3 MB or its median is over a second.
"""

from __future__ import annotations

import runpy
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from machine import describe
from playwright.sync_api import Browser, sync_playwright

TESTS = Path(__file__).resolve().parents[1] / "tests"
NUM_RECORDS, ROUNDS = 200, 7
MAX_BYTES, MAX_SECONDS = 3_000_000, 1.0
NAVIGATION = "performance.getEntriesByType('navigation')[0].loadEventEnd / 1000"


def seconds_of(browser: Browser, path: Path) -> float:
    """One visit of a browser that has never seen the page."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    page.goto(path.as_uri())
    found = float(page.evaluate(NAVIGATION))
    context.close()
    return found


def main() -> int:
    """Write the pages, visit them in turn, print sizes and times."""
    print(describe("playwright"))
    sys.path.insert(0, str(TESTS / "browser"))
    use = runpy.run_path(str(TESTS / "browser" / "test_use.py"))
    sample = runpy.run_path(str(TESTS / "unit" / "report" / "sample.py"))
    use["_write"].__globals__["_points"].__kwdefaults__["count"] = NUM_RECORDS
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        page, empty = use["_write"](sample, folder), folder / "empty.html"
        empty.write_text("<!doctype html><title>empty</title>", encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        found = [(seconds_of(browser, page), seconds_of(browser, empty)) for _ in range(ROUNDS)]
        browser.close()
        size = page.stat().st_size
        assert page.read_text(encoding="utf-8").count("<tr>") > NUM_RECORDS
    ours, nothing = (statistics.median(times) for times in zip(*found, strict=True))
    print(f"{NUM_RECORDS} records of a sweep beside a whole study: {size / 1e6:.2f} MB")
    print(f"loaded in {ours:.2f} s (median of {ROUNDS}), an empty page in {nothing:.2f} s: {ours / nothing:.1f} times")
    return int(size > MAX_BYTES or ours > MAX_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
