"""Digests of plain data and of files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from pilotkit.provenance.digest import digest_file, digest_files, digest_of, short


def test_digest_is_sha256_of_canonical_json() -> None:
    expected = hashlib.sha256(b'{"a":[1,2.5,null,true],"b":"\\u00e9"}').hexdigest()
    assert digest_of({"b": "é", "a": [1, 2.5, None, True]}) == expected


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param({"a": 1}, {"a": 1.0}, id="int-and-float"),
        pytest.param({"a": 1}, {"a": "1"}, id="int-and-text"),
        pytest.param([1, 2], [2, 1], id="order-of-a-list"),
        pytest.param({"a": None}, {}, id="none-and-missing"),
    ],
)
def test_different_values_differ(left: Any, right: Any) -> None:
    assert digest_of(left) != digest_of(right)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"deep": [float("-inf")]}], ids=str)
def test_what_is_not_finite_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        digest_of(value)


def test_what_is_not_plain_is_refused() -> None:
    with pytest.raises(TypeError, match="Object of type PosixPath is not JSON serializable"):
        digest_of(Path("x"))


def test_file_longer_than_one_block(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000  # 1.28 MB, more than a block of 1 MiB
    (tmp_path / "a").write_bytes(content)
    assert digest_file(tmp_path / "a") == hashlib.sha256(content).hexdigest()


def test_digest_of_files_does_not_depend_on_order_or_place(tmp_path: Path) -> None:
    for root in (tmp_path / "one", tmp_path / "two"):
        (root / "sub").mkdir(parents=True)
        (root / "a.txt").write_text("alpha")
        (root / "sub/b.txt").write_text("beta")
    one = [tmp_path / "one/a.txt", tmp_path / "one/sub/b.txt"]
    two = [tmp_path / "two/sub/b.txt", tmp_path / "two/a.txt"]
    expected = digest_of(
        [["a.txt", hashlib.sha256(b"alpha").hexdigest()], ["sub/b.txt", hashlib.sha256(b"beta").hexdigest()]]
    )
    assert digest_files(one, root=tmp_path / "one") == expected
    assert digest_files(two, root=tmp_path / "two") == expected


def test_rename_and_moved_border_change_the_digest(tmp_path: Path) -> None:
    digests = set()
    for number, files in enumerate([{"a": "xy", "b": "z"}, {"a": "x", "b": "yz"}, {"a": "xy", "c": "z"}, {"a": "xyz"}]):
        root = tmp_path / str(number)
        root.mkdir()
        for name, text in files.items():
            (root / name).write_text(text)
        digests.add(digest_files(list(root.iterdir()), root=root))
    assert len(digests) == 4


def test_missing_file_and_file_outside_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        digest_files([tmp_path / "none"], root=tmp_path)
    with pytest.raises(ValueError, match="is not in the subpath of"):
        digest_files([tmp_path / "a"], root=tmp_path / "b")


def test_short() -> None:
    assert short("0123456789abcdef") == "0123456789ab"
