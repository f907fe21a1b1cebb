"""The pages as people use them: sorting, filtering, keyboard, three widths, light and dark, and what axe-core finds."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from pilotkit.report.comparison import render_comparison
from pilotkit.report.furniture import page_furniture
from pilotkit.report.page import render_page
from pilotkit.report.sweep_page import render_sweep_page
from pilotkit.units import format_bytes, format_count, format_seconds

WIDTHS = {"phone": 390, "tablet": 820, "desk": 1400}
SERIOUS = ("serious", "critical")


def _points(sample: dict[str, Any], folder: Path, *, count: int = 40) -> list[Any]:
    points = sample["sweep_records"](folder)
    for number in range(len(points), count):
        point = copy.deepcopy(points[number % 8])
        point.run_id = f"{point.run_id}-{number}"
        point.config["train"] = {"micro_batch_size": 1 + number // 8, "seq_len": 128 * (1 + number % 8)}
        points.append(point)
    return list(points)


def _write(sample: dict[str, Any], folder: Path, *, kind: str = "go", language: str = "en", title: str = "t") -> Path:
    records = sample[f"{kind}_records"](folder)
    page = render_page(
        list(records.values()),
        verdict=sample["verdict_of"](records),
        config_summary=sample["SUMMARY"],
        title=title,
        page_dir=folder,
        sweep_records=_points(sample, folder),
        language=language,
    )
    path = folder / f"{kind}-{language}.html"
    path.write_text(page, encoding="utf-8")
    return path


def _others(sample: dict[str, Any], folder: Path) -> dict[str, Path]:
    """The comparison of two studies and the page of a sweep."""
    one, other = (list(sample[f"{kind}_records"](folder).values()) for kind in ("go", "no_go"))
    points = _points(sample, folder)
    for point in points:
        train = point.config["train"]
        point.overrides = [f"train.{name}={train[name]}" for name in ("micro_batch_size", "seq_len")]
    varying = ["train.micro_batch_size", "train.seq_len"]
    texts = {
        "compare": render_comparison(one, other, names=("one", sample["HOSTILE"])),
        "sweep": render_sweep_page(points, varying=varying, title="t", counts="40 points", page_dir=folder),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


def _violations(page: Any) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [
        f"{item['id']} ({item['impact']}): {node['html'][:120]} {node.get('failureSummary', '')}"
        for item in found
        if item["impact"] in SERIOUS
        for node in item["nodes"][:3]
    ]


@pytest.mark.parametrize(
    ("kind", "scheme"), [("go", "light"), ("go", "dark"), ("no_go", "dark"), ("incomplete", "light")]
)
def test_axe_finds_nothing_serious_and_the_page_asks_for_nothing(
    sample: dict[str, Any], visit: Any, tmp_path: Path, kind: str, scheme: str
) -> None:
    seen = visit(_write(sample, tmp_path, kind=kind, title=sample["HOSTILE"]), scheme=scheme)
    assert _violations(seen.page) == []
    assert seen.page.locator("script").count() == 1
    assert seen.page.locator(".eyebrow").first.inner_text() == sample["HOSTILE"]
    assert (seen.told, seen.asked) == ([], [])


def test_the_other_pages_likewise(sample: dict[str, Any], visit: Any, tmp_path: Path) -> None:
    pages = {**_others(sample, tmp_path), "japanese": _write(sample, tmp_path, language="ja")}
    for name, path in pages.items():
        seen = visit(path, scheme="light" if name == "compare" else "dark")
        assert _violations(seen.page) == [], name
        assert (seen.told, seen.asked) == ([], []), name


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_nothing_is_cut_off_at_any_width(sample: dict[str, Any], visit: Any, tmp_path: Path, width: int) -> None:
    for path in (_write(sample, tmp_path), *_others(sample, tmp_path).values()):
        seen = visit(path, width=width)
        assert seen.page.evaluate("document.documentElement.scrollWidth") == width, path.name
        # A picture of the whole page exists and is as wide as the window: PNG keeps its width in bytes 16 to 20.
        picture = seen.page.screenshot(full_page=True)
        assert int.from_bytes(picture[16:20], "big") == width


def _column(page: Any, table: Any, column: int) -> list[str]:
    return [text.strip() for text in table.locator(f"tbody tr td:nth-child({column})").all_inner_texts()]


def test_a_click_sorts_by_the_numbers_and_the_keyboard_too(sample: dict[str, Any], visit: Any, tmp_path: Path) -> None:
    page = visit(_others(sample, tmp_path)["sweep"]).page
    table = page.locator("#points table")
    speeds = {text: value for value in range(1, 10**4) if (text := format_count(float(value)))}
    head = table.locator("th", has_text="tokens/s")
    before = _column(page, table, 6)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    ascending = [text for text in _column(page, table, 6) if text != "none"]
    assert sorted(before) == sorted(_column(page, table, 6))
    values = [speeds[text] for text in ascending]
    assert values == sorted(values)
    assert len(set(values)) > 3
    assert _column(page, table, 6)[-1] == "none"  # what has no number comes last
    page.keyboard.press("Enter")  # the focus has stayed on the button
    assert head.get_attribute("aria-sort") == "descending"
    assert [text for text in _column(page, table, 6) if text != "none"] == ascending[::-1]
    assert _column(page, table, 6)[-1] == "none"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    assert table.locator("[aria-sort]").all_inner_texts() == ["step"]


def test_every_unit_is_sorted_by_its_size(visit: Any, tmp_path: Path) -> None:
    """The script reads what `pilotkit.units` writes."""
    seconds = [0.0, 5e-6, 0.0123, 0.9, 59.0, 75.0, 3599.0, 5400.0, 90_000.0, 2e6]
    sizes = [0.0, 900.0, 1536.0, 5e6, 3e9, 7e12, 9e12, 2e13, 3e13, 4e13]
    counts = [0.0, 0.5, 7.0, 999.0, 1200.0, 45e3, 6e6, 7e9, 8e12, 9e15]
    rows = list(zip(map(format_seconds, seconds), map(format_bytes, sizes), map(format_count, counts), strict=True))
    shuffled = random.Random(3).sample(rows, k=len(rows))
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in shuffled)
    script = page_furniture()["script"]
    path = tmp_path / "units.html"
    path.write_text(
        f"<!doctype html><meta charset=utf-8><body data-filter=f><table><thead><tr><th>a<th>b<th>c</thead><tbody>{body}"
        f"</tbody></table><script>{script}</script>",
        encoding="utf-8",
    )
    page = visit(path).page
    for column in range(3):
        page.locator("th button").nth(column).click()
        expected = [row[column] for row in rows]
        assert _column(page, page.locator("table"), column + 1) == expected
        page.locator("th button").nth(column).click()
        assert _column(page, page.locator("table"), column + 1) == expected[::-1]


@pytest.mark.parametrize(("language", "label"), [("en", "filter rows"), ("ja", "行を絞り込む")])
def test_a_filter_keeps_the_rows_that_hold_every_word(
    sample: dict[str, Any], visit: Any, tmp_path: Path, language: str, label: str
) -> None:
    page = visit(_write(sample, tmp_path, language=language)).page
    field = page.locator("#sweep ~ .filter").get_by_label(label)
    table = page.locator("#sweep ~ table")
    every = table.locator("tbody tr").count()
    field.fill("750.31 128")
    kept = table.locator("tbody tr:visible").all_inner_texts()
    assert 0 < len(kept) < every
    assert all("128" in text and "750.31" in text for text in kept)
    assert page.locator("#sweep ~ .filter output").inner_text() == f"{len(kept)} / {every}"
    field.fill("")
    assert table.locator("tbody tr:visible").count() == every


def test_all_that_can_be_pressed_is_reached_by_tab_and_shows_it(
    sample: dict[str, Any], visit: Any, tmp_path: Path
) -> None:
    page = visit(_write(sample, tmp_path, kind="no_go")).page
    wanted = page.evaluate(
        """[...document.querySelectorAll("a[href], button, summary, input")]
        .filter(e => e.checkVisibility({contentVisibilityAuto: true})).length"""
    )
    # Every stop is marked: coming to one twice would mean that others are never reached.
    reached, bare = 0, []
    for reached in range(1, wanted + 1):
        page.keyboard.press("Tab")
        state = page.evaluate(
            """() => { const e = document.activeElement, style = getComputedStyle(e);
            const twice = e.dataset.seen; e.dataset.seen = 1;
            return [e.tagName, e.textContent.slice(0, 30), twice ?? "", style.outlineStyle]; }"""
        )
        assert state[2] == "", f"after {reached - 1} of {wanted}: {state}"
        bare += [state] if state[3] == "none" else []
    assert reached == wanted
    assert bare == []
