"""The page in a real browser: nothing is asked of the network, it fits a phone, and the verdict can be seen.

Needs Chromium, and fails without it.
"""

from __future__ import annotations

import functools
import json
import re
import runpy
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from pilotkit.report.page import render_page
from tests.conftest import serving

SAMPLE = Path(__file__).parents[1] / "unit" / "report" / "sample.py"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
KINDS = {"go": "GO", "no_go": "NO-GO", "incomplete": "INCOMPLETE"}
# The narrowest window of a headless browser is wider than a phone; a frame is as narrow as it is told to be.
FRAME = """<!doctype html><iframe id="f" src="page.html" style="width:390px;height:3000px;border:0"></iframe>
<pre id="found"></pre><script>
document.getElementById("f").onload = event => {
  const page = event.target.contentDocument;
  const over = [...page.body.querySelectorAll("*")].filter(e => !e.closest("pre, thead") && e.getClientRects().length
    && e.getBoundingClientRect().right > 390.5).map(e => e.tagName + ": " + e.textContent.slice(0, 40));
  document.getElementById("found").textContent = JSON.stringify(
    {width: page.documentElement.scrollWidth, inner: event.target.contentWindow.innerWidth, over});
};</script>"""


@pytest.fixture(scope="module")
def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    pytest.fail("no Chromium: install chromium, chromium-browser or google-chrome")


@functools.cache
def _sample() -> dict[str, Any]:
    return runpy.run_path(str(SAMPLE))


def _write(kind: str, folder: Path) -> Path:
    sample = _sample()
    records = sample[f"{kind}_records"](folder)
    page = render_page(
        list(records.values()),
        verdict=sample["verdict_of"](records),
        config_summary=sample["SUMMARY"],
        title="tiny on cpu",
        page_dir=folder,
        sweep_records=sample["sweep_records"](folder),
    )
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    return path


def _browse(chromium: str, address: str, *options: str, profile: Path) -> str:
    command = [chromium, *FLAGS, f"--user-data-dir={profile}", *options, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


@pytest.fixture
def requests(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """A proxy that notes whatever the browser asks of it and serves nothing."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(503)

        do_CONNECT = do_GET  # noqa: N815 - the name that http.server looks for

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    with serving(Handler) as address:
        yield address, asked


# What Chromium asks for by itself, whatever the page is.
OWN_ERRANDS = re.compile(r"(google|gvt1|googleapis)\.com|/generate_204")


@pytest.mark.parametrize("kind", KINDS)
def test_verdict_is_shown_and_nothing_is_fetched(
    chromium: str, tmp_path: Path, kind: str, requests: tuple[str, list[str]]
) -> None:
    proxy, asked = requests
    page = _write(kind, tmp_path)
    dom = _browse(chromium, page.as_uri(), f"--proxy-server={proxy}", "--dump-dom", profile=tmp_path / "profile")
    assert f"<h1>{KINDS[kind]}</h1>" in dom
    assert dom.count("<script") == 1
    assert dom.count("<section") == page.read_text(encoding="utf-8").count("<section")
    assert [address for address in asked if not OWN_ERRANDS.search(address)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_fits_a_phone(chromium: str, tmp_path: Path, kind: str) -> None:
    _write(kind, tmp_path)
    (tmp_path / "frame.html").write_text(FRAME, encoding="utf-8")
    dom = _browse(
        chromium,
        (tmp_path / "frame.html").as_uri(),
        "--allow-file-access-from-files",
        "--virtual-time-budget=3000",
        "--dump-dom",
        profile=tmp_path / "profile",
    )
    found = re.search(r'<pre id="found">(.+?)</pre>', dom)
    assert found is not None, dom[:500]
    assert json.loads(found[1]) == {"width": 390, "inner": 390, "over": []}


def test_picture_has_the_colour_of_the_verdict(chromium: str, tmp_path: Path) -> None:
    page = _write("go", tmp_path)
    picture = tmp_path / "page.png"
    options = ("--window-size=600,300", "--blink-settings=preferredColorScheme=1", f"--screenshot={picture}")
    _browse(chromium, page.as_uri(), *options, profile=tmp_path / "profile")
    accent = bytes.fromhex("1b7345")  # --good of style.css in light colours
    assert accent in _pixels(picture)


def _pixels(path: Path) -> bytes:
    """The colours of an 8-bit RGB or RGBA picture, without filters' help: enough to look for a flat colour."""
    data = path.read_bytes()
    width, channels = int.from_bytes(data[16:20], "big"), {2: 3, 6: 4}[data[25]]
    packed, position = b"", 8
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        if data[position + 4 : position + 8] == b"IDAT":
            packed += data[position + 8 : position + 8 + size]
        position += 12 + size
    raw, stride = zlib.decompress(packed), width * channels
    rows, above = bytearray(), bytearray(stride)
    for start in range(0, len(raw), stride + 1):
        row = _unfilter(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), above, channels)
        rows += row
        above = row
    return bytes(rows)


def _unfilter(kind: int, row: bytearray, above: bytearray, step: int) -> bytearray:
    """One row of a PNG (RFC 2083, section 6): none, sub, up, average or Paeth."""
    for index in range(len(row)):
        left = row[index - step] if index >= step else 0
        up, corner = above[index], above[index - step] if index >= step else 0
        if kind == 4:
            guess = left + up - corner
            nearest = min((left, up, corner), key=lambda value: abs(guess - value))
        else:
            nearest = (0, left, up, (left + up) // 2)[kind]
        row[index] = (row[index] + nearest) % 256
    return row
