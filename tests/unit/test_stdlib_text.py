"""The lists of files that the text data sets read."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pilotkit.errors import ConfigError
from pilotkit.stdlib_text import files_below, stdlib_files, stdlib_root, text_files


def make(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def names(files: list[Path], root: Path) -> list[str]:
    return [file.relative_to(root).as_posix() for file in files]


def test_stdlib_is_that_of_the_running_interpreter() -> None:
    files = stdlib_files()
    assert Path(os.__file__) in files
    assert stdlib_root() / "json/decoder.py" in files
    assert len(files) > 400
    assert sum(file.stat().st_size for file in files) > 5_000_000


def test_stdlib_leaves_out_packages_and_tests_and_is_sorted() -> None:
    relative = names(stdlib_files(), stdlib_root())
    parts = {part for name in relative for part in name.split("/")[:-1]}
    assert not parts & {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}
    assert relative == sorted(set(relative))
    assert all(name.endswith(".py") for name in relative)


def test_stdlib_in_a_virtual_environment_is_the_base_installation() -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert stdlib_root().name == version
    assert (stdlib_root() / "os.py").is_file()


def test_stdlib_without_source_is_a_config_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make(tmp_path, "os.pyc", "test/ok.py")
    monkeypatch.setattr("pilotkit.stdlib_text.stdlib_root", lambda: tmp_path)
    with pytest.raises(ConfigError) as caught:
        stdlib_files()
    assert str(caught.value.problems[0]) == (
        "data.name=stdlib\n"
        "    allowed: a Python whose standard library is a folder of .py files\n"
        f"    to mend: {tmp_path} holds none; choose data=synthetic, or data=text_folder data.path=FOLDER"
    )


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        pytest.param("*", ["a.txt", "a/deep/z.txt", "a/y.md", "b.md"], id="everything"),
        pytest.param("*.md", ["a/y.md", "b.md"], id="by-name-in-every-folder"),
        pytest.param("**/*.md", ["a/y.md", "b.md"], id="leading-stars-say-nothing-more"),
        pytest.param("a/*", ["a/deep/z.txt", "a/y.md"], id="by-relative-path"),
        pytest.param("*/deep/*.txt", ["a/deep/z.txt"], id="star-crosses-folders"),
    ],
)
def test_text_files_by_pattern(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    make(tmp_path, "b.md", "a/y.md", "a/deep/z.txt", "a.txt", ".hidden.md", ".git/x.md", "a/.cache/q.md")
    assert names(text_files(tmp_path, pattern=pattern), tmp_path) == expected


def test_text_files_of_a_hidden_start_are_listed(tmp_path: Path) -> None:
    make(tmp_path, ".corpus/a.txt")
    assert names(text_files(tmp_path / ".corpus", pattern="*"), tmp_path) == [".corpus/a.txt"]


@pytest.mark.parametrize("as_text", [True, False], ids=["str", "path"])
def test_text_files_of_one_file_ignores_the_pattern(tmp_path: Path, as_text: bool) -> None:
    make(tmp_path, "book.rst")
    path = tmp_path / "book.rst"
    assert text_files(str(path) if as_text else path, pattern="*.txt") == [path]


def test_links_are_followed_once_and_a_loop_ends(tmp_path: Path) -> None:
    make(tmp_path, "corpus/a.txt", "elsewhere/b.txt")
    (tmp_path / "corpus/up").symlink_to(tmp_path / "corpus")
    (tmp_path / "corpus/one").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus/two").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus/broken.txt").symlink_to(tmp_path / "nothing")
    assert names(text_files(tmp_path / "corpus", pattern="*"), tmp_path / "corpus") == ["a.txt", "one/b.txt"]


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        text_files(tmp_path / "corpus", pattern="*")
    assert str(caught.value.problems[0]) == (
        f"data.path={tmp_path}/corpus\n"
        "    allowed: an existing file or folder\n"
        f"    to mend: there is nothing at {tmp_path}/corpus; give a path relative to where pilotkit was started"
    )


def test_nothing_matches(tmp_path: Path) -> None:
    make(tmp_path, "a.md", ".b.txt")
    with pytest.raises(ConfigError) as caught:
        text_files(tmp_path, pattern="*.txt")
    assert str(caught.value.problems[0]) == (
        f"data.path={tmp_path}\n"
        "    allowed: a folder with at least one file that matches '*.txt' and is not hidden\n"
        "    to mend: give another folder, or another data.kwargs.pattern"
    )


def test_a_folder_that_cannot_be_listed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make(tmp_path, "a.txt", "secret/b.txt")
    listed = os.scandir

    def scandir(path: str) -> object:
        if os.fspath(path).endswith("secret"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)  # root in a container may list everything
    with pytest.raises(ConfigError) as caught:
        files_below(tmp_path, key="model.name")
    assert str(caught.value.problems[0]) == (
        f"model.name={tmp_path}\n"
        "    allowed: folders that can be read to the end\n"
        f"    to mend: {tmp_path}/secret: Permission denied"
    )
