"""The page: self-contained, everything escaped, every number with its origin, the same for the same records."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pilotkit.chapters import CHAPTERS
from pilotkit.decide.verdict import Verdict
from pilotkit.records.run_dir import RunDir
from pilotkit.report.page import render_page

VOID = {"meta", "link", "br", "line"}


class _Reader(HTMLParser):
    """Collects tags, addresses and text, and fails on a tag that is closed out of turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "srcset", "action", "data")]
        assert not any(name.startswith("on") for name, _ in attrs), attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)


def _render(sample: dict[str, Any], kind: str, root: Path, **changed: Any) -> str:
    records = sample[f"{kind}_records"](root)
    arguments = {
        "verdict": sample["verdict_of"](records),
        "config_summary": sample["SUMMARY"],
        "title": "tiny on cpu",
        "page_dir": root / "tiny" / "report" / "r",
        "sweep_records": sample["sweep_records"](root),
        **changed,
    }
    return render_page(list(records.values()), **arguments)


def _read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def _text(page: str) -> str:
    return re.sub(r"\s+", " ", " ".join(_read(page).text))


@pytest.mark.parametrize(
    ("kind", "word", "tone"),
    [("go", "GO", "good"), ("no_go", "NO-GO", "bad"), ("incomplete", "INCOMPLETE", "quiet")],
)
def test_verdict_stands_on_top(sample: dict[str, Any], tmp_path: Path, kind: str, word: str, tone: str) -> None:
    page = _render(sample, kind, tmp_path)
    assert f"<h1>{word}</h1>" in page
    assert f"<title>{word}: tiny on cpu</title>" in page
    assert f'<body class="{tone}" ' in page


def test_a_caution_stands_before_the_reasons(sample: dict[str, Any], tmp_path: Path) -> None:
    verdict = Verdict("GO", ["It is done in time."], [], cautions=["Slower than <one> device."])
    text = _render(sample, "go", tmp_path, verdict=verdict)
    assert text.index("Slower than &lt;one&gt; device.") < text.index("It is done in time.")


@pytest.mark.parametrize("kind", ["go", "no_go", "incomplete"])
def test_reads_nothing_from_outside(sample: dict[str, Any], tmp_path: Path, kind: str) -> None:
    page = _render(sample, kind, tmp_path)
    reader = _read(page)
    assert reader.tags.isdisjoint({"img", "iframe", "object", "embed", "form"})
    outside = [address for address in reader.addresses if re.match(r"[a-z]+:|//|/", address) and address != "data:,"]
    assert outside == []
    assert not re.search(r"url\(|@import|https?:", page)
    # One script, ours, which the policy knows by its digest; another one would not be run.
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page
    assert str(tmp_path) not in page


def test_hostile_names_and_tracebacks_are_text(sample: dict[str, Any], tmp_path: Path) -> None:
    hostile = sample["HOSTILE"]
    page = _render(
        sample, "no_go", tmp_path, title=hostile, config_summary={hostile: hostile, "g": {hostile: [hostile]}}
    )
    assert page.count("<script") == 1
    # title and its tab, reason, run twice, group twice, problem, note of a strategy, traceback
    assert _text(page).count(hostile) >= 10
    assert "Traceback (most recent call last):" in page


def test_a_run_id_cannot_break_the_links(sample: dict[str, Any], tmp_path: Path) -> None:
    records = sample["go_records"](tmp_path)
    records["lock"].run_id = "a"
    verdict = sample["verdict_of"](sample["go_records"](tmp_path))
    page = render_page(
        list(records.values()), verdict=verdict, config_summary={}, title="t", page_dir=tmp_path, sweep_records=[]
    )
    head = page.split("</header>")[0]
    assert f">{records['prove'].run_id}</a>" in head
    assert _text(head.split("</h1>")[1]).count("checks passed") == 1


def test_links_lead_to_records(sample: dict[str, Any], tmp_path: Path) -> None:
    page_dir = tmp_path / "tiny" / "report" / "r"
    page_dir.mkdir(parents=True)
    for record in [*sample["go_records"](tmp_path).values(), *sample["sweep_records"](tmp_path)]:
        RunDir(Path(record.folder)).path.mkdir(parents=True)
        RunDir(Path(record.folder)).write_record(record)
    addresses = {address for address in _read(_render(sample, "go", tmp_path)).addresses if not address.startswith("#")}
    files = {(page_dir / address).resolve() for address in addresses - {"data:,"}}
    assert len(files) == 7 + 9
    assert all(path.is_file() for path in files)


def test_chapters_in_order_with_what_was_not_run(sample: dict[str, Any], tmp_path: Path) -> None:
    page = _render(sample, "incomplete", tmp_path)
    sections = re.findall(r'<section id="(\w+)" class="chapter">', page)
    assert sections == [chapter.chapter for chapter in CHAPTERS]
    restore = page.split('<section id="restore"')[1].split("</section>")[0]
    assert "not run" in restore
    assert "pilotkit stage=restore &#39;name=tiny on cpu&#39;" in restore
    stack = page.split('<section id="qualify"')[1].split("</section>")[0]
    assert "pilotkit stage=qualify &#39;name=tiny on cpu&#39;" in stack


def test_missing_evidence_and_its_commands(sample: dict[str, Any], tmp_path: Path) -> None:
    head = _render(sample, "incomplete", tmp_path).split("</header>")[0]
    assert "What is missing" in head
    assert '<pre class="command">pilotkit stage=prove &#39;name=tiny on cpu&#39;</pre>' in head
    assert "qualify: not run" in head


def test_numbers_carry_their_origin(sample: dict[str, Any], tmp_path: Path) -> None:
    page = _render(sample, "go", tmp_path)
    values = re.findall(r"<dd>(.*?)</dd>", page.split('<section id="pin"')[1].split('<section id="tell"')[0])
    assert len(values) > 40
    assert all('class="origin"' in value for value in values)
    text = _text(page)
    for words in ("1.31 GiB measured", "4.00 GiB given", "9 h 31 min projected", "not known not run"):
        assert words in text


def test_what_did_not_fit_is_drawn(sample: dict[str, Any], tmp_path: Path) -> None:
    text = _text(_render(sample, "no_go", tmp_path))
    assert "does not fit measure 20260301-100300-abc003 , took 23.00 s" in text
    assert "asked for 768.00 MiB" in text
    assert "OutOfMemoryError" in text


def test_further_figures_of_strategies_share_a_table(sample: dict[str, Any], tmp_path: Path) -> None:
    pilot = _render(sample, "go", tmp_path).split('<section id="pilot"')[1].split("</section>")[0]
    text = _text(pilot[pilot.index(">") + 1 :])
    assert "Further figures of each strategy figure single ddp tokens per second" in text
    assert "first step none 1.10 s measured" in text
    assert text.count("1.10 s") == 1


def test_sweep_stands_in_the_chapter_of_measure(sample: dict[str, Any], tmp_path: Path) -> None:
    measure = _render(sample, "go", tmp_path).split('<section id="measure"')[1].split("</section>")[0]
    assert "Tokens per second by micro-batch and seq-len" in measure
    assert "8 x 512" in measure
    assert 'id="sweep"' not in _render(sample, "go", tmp_path, sweep_records=[])


def test_verdict_comes_from_the_plan_record_when_not_given(sample: dict[str, Any], tmp_path: Path) -> None:
    assert "<h1>NO-GO</h1>" in _render(sample, "no_go", tmp_path, verdict=None)


def test_without_anything(tmp_path: Path) -> None:
    page = render_page([], verdict=None, config_summary={}, title="empty", page_dir=tmp_path, sweep_records=[])
    assert "<h1>NO VERDICT</h1>" in page
    assert '<pre class="command">pilotkit stage=plan</pre>' in page
    assert _text(page).count("not run") >= 11


def test_what_ran_with_other_options_is_named(sample: dict[str, Any], tmp_path: Path) -> None:
    record = dataclasses.replace(sample["go_records"](tmp_path)["prove"], overrides=["stage=prove", "train.seq_len=16"])
    page = render_page([], verdict=None, config_summary={}, title="t", page_dir=tmp_path, elsewhere={"prove": record})
    assert f"prove ran with other options: {record.run_id} (train.seq_len=16)" in _text(page)


def test_same_records_same_page(sample: dict[str, Any], tmp_path: Path) -> None:
    assert _render(sample, "go", tmp_path) == _render(sample, "go", tmp_path)


def test_configuration_at_a_glance(sample: dict[str, Any], tmp_path: Path) -> None:
    text = _text(_render(sample, "go", tmp_path)).split("The evidence")[0]
    for words in ("total tokens 100,000,000", "memory 4.00 GiB", "grad accum steps not set", "deterministic yes"):
        assert words in text
