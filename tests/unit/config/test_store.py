"""The option files: where they are, what they offer."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotkit.config import store


def test_groups_are_those_of_the_design() -> None:
    groups = store.list_groups()
    assert {name: groups[name] for name in ("hardware", "parallelism", "activation_checkpointing", "reservation")} == {
        "hardware": ["a100", "cpu", "h100", "h200", "mi250", "mi300x"],
        "parallelism": ["ddp", "fsdp", "hsdp", "single"],
        "activation_checkpointing": ["full", "none", "selective"],
        "reservation": ["30d", "7d"],
    }


def test_a_folder_of_the_users_own_adds_to_them(tmp_path: Path) -> None:
    for name in ("hardware/mine.yaml", "fleet/one.yaml", ".git/config.yaml", "notes.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("name: x\n", encoding="utf-8")
    groups = store.list_groups(extra_dirs=[tmp_path, tmp_path / "absent"])
    assert groups["hardware"] == ["a100", "cpu", "h100", "h200", "mi250", "mi300x", "mine"]
    assert groups["fleet"] == ["one"]
    assert ".git" not in groups
    assert list(groups) == sorted(groups)


def test_a_package_without_its_options_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "__file__", str(tmp_path / "pilotkit" / "config" / "store.py"))
    with pytest.raises(FileNotFoundError) as caught:
        store.conf_dir()
    assert str(caught.value) == (
        f"pilotkit's option files are missing: no conf/config.yaml in or beside {tmp_path / 'pilotkit'}"
    )


def test_an_experiment_starts_with_the_command_that_runs_it() -> None:
    for path in (store.conf_dir() / "experiment").glob("*.yaml"):
        package, command = path.read_text(encoding="utf-8").splitlines()[:2]
        assert package == "# @package _global_"
        assert command.startswith("# pilotkit ")
        assert f"experiment={path.stem}" in command
