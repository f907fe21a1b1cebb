"""`pilotkit --help`: stages, groups, five commands that would compose."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest
from omegaconf import DictConfig

from pilotkit.chapters import CHAPTERS
from pilotkit.config.overrides import check_overrides
from pilotkit.config.store import list_groups
from pilotkit.help import EXAMPLES, help_text


def test_everything_that_can_be_chosen_is_in_it() -> None:
    text = help_text()
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.startswith("  ")]
    for chapter in CHAPTERS:
        assert ([chapter.stage, chapter.question] in lines) == chapter.built
    for group, options in list_groups().items():
        assert f"  {group:<24}  {', '.join(options)}\n" in text
    assert len(EXAMPLES) == 5
    for words, command in EXAMPLES:
        assert f"  # {words}\n  {command}\n" in text
    assert all(len(line) <= 120 for line in text.splitlines())


@pytest.mark.parametrize("command", [command for _, command in EXAMPLES])
def test_the_examples_are_right(compose: Callable[..., DictConfig], command: str) -> None:
    program, *words = shlex.split(command)
    assert program == "pilotkit"
    overrides = [word for word in words if "=" in word]
    assert check_overrides(overrides, multirun="-m" in words)[0] == []
