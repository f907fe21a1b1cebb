"""The chapters, against the stages that the front door accepts."""

from __future__ import annotations

import pytest

from pilotkit.chapters import CHAPTERS, chapter_of
from pilotkit.config.schema import STAGES


def test_what_is_built_is_what_can_be_asked_for() -> None:
    assert ("all", *(chapter.stage for chapter in CHAPTERS if chapter.built)) == STAGES
    assert [chapter.stage for chapter in CHAPTERS if not chapter.built] == ["numerics", "qualify"]


def test_names_are_used_once() -> None:
    assert len({chapter.chapter for chapter in CHAPTERS}) == len({chapter.stage for chapter in CHAPTERS}) == 11


def test_chapter_of_a_stage() -> None:
    assert chapter_of("lock").chapter == "pin"
    with pytest.raises(KeyError, match="guess"):
        chapter_of("guess")
