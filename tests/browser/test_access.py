"""The page for everybody, in a real browser: contrast in light and dark, keyboard, screen reader, size and speed.

A page beside it looks at it through a frame, computes what WCAG 2.1 AA asks, and leaves its findings as text.
"""

from __future__ import annotations

import copy
import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pilotkit.report.page import render_page

SAMPLE = Path(__file__).parents[1] / "unit" / "report" / "sample.py"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--allow-file-access-from-files",
    "--virtual-time-budget=5000", "--dump-dom",
)  # fmt: skip
AUDIT = """<!doctype html><iframe id="f" src="page.html" style="width:1000px;height:4000px;border:0"></iframe>
<pre id="found"></pre><script>
const channel = c => (c /= 255, c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const numbers = text => text.match(/[\\d.]+/g).map(Number);
document.getElementById("f").onload = event => {
  const page = event.target.contentDocument, view = event.target.contentWindow;
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const c = numbers(view.getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const contrast = [], walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  let texts = 0;
  for (let node; (node = walker.nextNode());) {
    const parent = node.parentElement, style = view.getComputedStyle(parent);
    if (!node.textContent.trim() || parent.closest("title, style") || !parent.getClientRects().length) continue;
    texts += 1;
    const ink = numbers(parent.closest("svg") ? style.fill : style.color).slice(0, 3);
    const [a, b] = [light(ink), light(ground(parent))], ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) contrast.push(node.textContent.trim().slice(0, 40) + " " + ratio.toFixed(2));
  }
  const all = selector => [...page.querySelectorAll(selector)];
  const levels = all("h1, h2, h3, h4").map(e => Number(e.tagName[1]));
  const unfocused = all("a[href], summary").filter(e => !e.closest("details:not([open]) > :not(summary)")).filter(e => {
    e.focus(); return page.activeElement !== e;
  }).map(e => e.textContent);
  const summary = page.querySelector("summary");
  document.getElementById("found").textContent = JSON.stringify({
    texts, contrast, unfocused,
    language: page.documentElement.lang, title: page.title.length > 0, h1: levels.filter(l => l === 1).length,
    jumps: levels.filter((l, i) => i && l > levels[i - 1] + 1).length,
    unnamed: all("svg[role=img]").filter(e => !e.getAttribute("aria-label")).length + all("svg:not([role=img])").length,
    silent: all("a").filter(e => !e.textContent.trim()).length,
    bare: all("table").filter(t => t.querySelectorAll("th[scope=col]").length === 0).length,
    tabindex: all("[tabindex]").filter(e => e.tabIndex > 0).length,
    twice: all("[id]").length - new Set(all("[id]").map(e => e.id)).size,
    landmark: all("main").length, opens: summary ? (summary.click(), summary.parentElement.open) : null,
    lost: all("a[href^='#']").filter(e => !page.getElementById(e.getAttribute("href").slice(1))).length,
  });
};</script>"""


@pytest.fixture(scope="module")
def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    pytest.fail("no Chromium: install chromium, chromium-browser or google-chrome")


def _write(kind: str, folder: Path, *, language: str = "en", num_sweep: int = 9) -> int:
    """Write the page, and return its bytes."""
    sample: dict[str, Any] = runpy.run_path(str(SAMPLE))
    records = sample[f"{kind}_records"](folder)
    points = sample["sweep_records"](folder)
    for number in range(len(points), num_sweep):
        point = copy.deepcopy(points[number % 8])
        point.run_id = f"{point.run_id}-{number}"
        point.config["train"] = {"micro_batch_size": 2 + number // 14, "seq_len": 128 * (1 + number % 14)}
        points.append(point)
    page = render_page(
        list(records.values()),
        verdict=sample["verdict_of"](records),
        config_summary=sample["SUMMARY"],
        title="tiny on cpu",
        page_dir=folder,
        sweep_records=points,
        language=language,
    )
    (folder / "page.html").write_text(page, encoding="utf-8")
    (folder / "audit.html").write_text(AUDIT, encoding="utf-8")
    return len(page.encode())


def _audit(chromium: str, folder: Path, *options: str) -> dict[str, Any]:
    command = [chromium, *FLAGS, f"--user-data-dir={folder / 'profile'}", *options, (folder / "audit.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    found = re.search(r'<pre id="found">(.+?)</pre>', done.stdout)
    assert found is not None, done.stdout[-500:]
    plain: dict[str, Any] = json.loads(found[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))
    return plain


@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
@pytest.mark.parametrize("kind", ["go", "no_go"])
def test_everybody_can_read_it(chromium: str, tmp_path: Path, kind: str, scheme: int) -> None:
    _write(kind, tmp_path)
    found = _audit(chromium, tmp_path, f"--blink-settings=preferredColorScheme={scheme}")
    assert found.pop("texts") > 300
    assert found == {
        "contrast": [], "unfocused": [], "language": "en", "title": True, "h1": 1, "jumps": 0, "unnamed": 0,
        "silent": 0, "bare": 0, "tabindex": 0, "twice": 0, "landmark": 1, "opens": True, "lost": 0,
    }  # fmt: skip


def test_two_hundred_records_are_light(chromium: str, tmp_path: Path) -> None:
    size = _write("go", tmp_path, language="ja", num_sweep=200)
    found = _audit(chromium, tmp_path)
    assert size < 3_000_000
    assert found["language"] == "ja"
    assert found["contrast"] == []
    assert found["texts"] > 1500
