"""Finding a factory's source without running it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pilotkit.provenance.digest import digest_files
from pilotkit.provenance.source import Source, find_source

EXPLODES = "raise RuntimeError('imported')\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_nested_module_is_found_and_nothing_is_imported(tmp_path: Path) -> None:
    write(tmp_path, {"user_pkg/__init__.py": EXPLODES, "user_pkg/zoo/__init__.py": EXPLODES})
    write(tmp_path, {"user_pkg/zoo/models.py": EXPLODES, "user_pkg/data.csv": "1", "user_pkg/__pycache__/x.py": "old"})
    code = [tmp_path / "user_pkg" / name for name in ("__init__.py", "zoo/__init__.py", "zoo/models.py")]
    expected = Source("user_pkg.zoo.models", code[2], digest_files(code, root=tmp_path / "user_pkg"))
    assert find_source("user_pkg.zoo.models:build", launch_dir=tmp_path) == expected
    assert not [name for name in sys.modules if name.startswith("user_pkg")]


def test_another_module_of_the_package_changes_the_digest(tmp_path: Path) -> None:
    write(tmp_path, {"user_pkg/__init__.py": "", "user_pkg/models.py": "", "user_pkg/layers.py": "a = 1\n"})
    first = find_source("user_pkg.models:build", launch_dir=tmp_path)
    write(tmp_path, {"user_pkg/layers.py": "a = 2\n"})
    second = find_source("user_pkg.models:build", launch_dir=tmp_path)
    assert first is not None
    assert second is not None
    assert first.digest != second.digest


def test_single_module(tmp_path: Path) -> None:
    write(tmp_path, {"user_models.py": EXPLODES, "unrelated.py": "1"})
    file = tmp_path / "user_models.py"
    expected = Source("user_models", file, digest_files([file], root=tmp_path))
    assert find_source("user_models:build", launch_dir=tmp_path) == expected


def test_namespace_package_counts_only_the_module(tmp_path: Path) -> None:
    write(tmp_path, {"user_ns/models.py": EXPLODES, "user_ns/outputs/x.py": "1"})
    file = tmp_path / "user_ns/models.py"
    expected = Source("user_ns.models", file, digest_files([file], root=file.parent))
    assert find_source("user_ns.models:build", launch_dir=tmp_path) == expected


def test_installed_package_is_found_on_the_path(tmp_path: Path) -> None:
    found = find_source("json.decoder:JSONDecoder", launch_dir=tmp_path)
    assert found is not None
    assert found.file == Path(json.__file__).parent / "decoder.py"


def test_launch_folder_comes_first(tmp_path: Path) -> None:
    write(tmp_path, {"colorsys.py": ""})
    found = find_source("colorsys:build", launch_dir=tmp_path)
    assert found is not None
    assert found.file == tmp_path / "colorsys.py"


@pytest.mark.parametrize(
    "factory",
    [
        "no_such_pkg:build",
        "json.no_such:build",
        "json.decoder.deeper:build",
        "sys:build",
        "",
        ":build",
        "a..b:c",
        "../x:y",
    ],
)
def test_what_is_not_a_file_on_the_path(tmp_path: Path, factory: str) -> None:
    assert find_source(factory, launch_dir=tmp_path) is None
