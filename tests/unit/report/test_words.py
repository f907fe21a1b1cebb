"""The page in Japanese: its own words are translated, what was found is quoted, and nothing is left out."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from pilotkit.chapters import CHAPTERS
from pilotkit.decide.scaling import FIXED_DEVICE_BATCH, FIXED_GLOBAL_BATCH
from pilotkit.records.record import ORIGINS
from pilotkit.report.page import render_page
from pilotkit.report.words import JAPANESE, translator


def _page(sample: dict[str, Any], kind: str, root: Path, language: str) -> str:
    records = sample[f"{kind}_records"](root)
    return render_page(
        list(records.values()),
        verdict=sample["verdict_of"](records),
        config_summary=sample["SUMMARY"],
        title=sample["HOSTILE"],
        page_dir=root,
        sweep_records=sample["sweep_records"](root),
        language=language,
    )


def test_every_word_of_the_template_is_translated() -> None:
    template = resources.files("pilotkit.report").joinpath("templates/report.html.j2").read_text(encoding="utf-8")
    used = set(re.findall(r'\{\{ "([^"]+)"\|t \}\}', template))
    assert len(used) > 15
    assert used - JAPANESE.keys() == set()


def test_every_chapter_and_origin_is_translated() -> None:
    assert {chapter.question for chapter in CHAPTERS} - JAPANESE.keys() == set()
    assert set(ORIGINS) - JAPANESE.keys() == set()
    for mode in (FIXED_GLOBAL_BATCH, FIXED_DEVICE_BATCH):
        assert f"Speed by number of devices, {mode}" in JAPANESE


@pytest.mark.parametrize("kind", ["go", "no_go", "incomplete"])
def test_japanese_page(sample: dict[str, Any], tmp_path: Path, kind: str) -> None:
    page, english = _page(sample, kind, tmp_path, "ja"), _page(sample, kind, tmp_path, "en")
    assert '<html lang="ja">' in page
    assert "予定している学習" in page
    assert "実測</a>" in page or kind == "incomplete"
    # Same structure, same numbers, same quotes: only words differ.
    assert re.findall(r"<[^>]+id=[^>]+>", page) == re.findall(r"<[^>]+id=[^>]+>", english)
    assert re.findall(r"\d+\.\d+", re.sub(r'aria-label="[^"]*"', "", page)) == re.findall(
        r"\d+\.\d+", re.sub(r'aria-label="[^"]*"', "", english)
    )
    assert page.count("<script") == 1


def test_tables_and_titles_of_the_page_have_no_english_left(sample: dict[str, Any], tmp_path: Path) -> None:
    page = _page(sample, "go", tmp_path, "ja")
    found = set(re.findall(r'<th scope="col">([^<]+)</th>', page)) | set(
        re.findall(r"<caption>([^<]+)</caption>", page)
    )
    # Names of options, units and metrics are the same in both languages.
    assert {text for text in found if re.fullmatch(r"[a-z][a-z ,-]+", text)} <= {
        "n", "single", "ddp", "fsdp", "hsdp", "micro-batch x seq-len",
    }  # fmt: skip


def test_english_stays_as_it_is() -> None:
    assert translator("en")("measured") == "measured"
    assert translator("ja")("a name of the user's") == "a name of the user's"
    with pytest.raises(KeyError):
        translator("fr")
