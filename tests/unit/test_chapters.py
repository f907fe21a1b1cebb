"""The chapters, against the stages that the front door accepts."""

from __future__ import annotations

import pytest

from pilotkit.chapters import CHAPTERS, TOOLS, chapter_of
from pilotkit.config.schema import STAGES


def test_what_is_built_is_what_can_be_asked_for() -> None:
    chapters = [chapter.stage for chapter in CHAPTERS if chapter.built]
    assert ("all", *chapters, *(stage for stage, _ in TOOLS)) == STAGES
    assert all(chapter.built for chapter in CHAPTERS)


def test_names_are_used_once() -> None:
    assert len({chapter.chapter for chapter in CHAPTERS}) == len({chapter.stage for chapter in CHAPTERS}) == 11


def test_chapter_of_a_stage() -> None:
    assert chapter_of("lock").chapter == "pin"
    with pytest.raises(KeyError, match="guess"):
        chapter_of("guess")
