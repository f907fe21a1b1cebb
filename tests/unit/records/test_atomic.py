"""A reader sees the old content or the new one, never a part; a failed write leaves the old file alone."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import pytest

from pilotkit.records import atomic


def _fail(*_arguments: object, **_named: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_text_is_written_as_it_is(odd_tmp_path: Path) -> None:
    path = odd_tmp_path / "größe.txt"
    atomic.write_text(path, "a\n模型\n")
    assert path.read_bytes() == "a\n模型\n".encode()
    assert [item.name for item in odd_tmp_path.iterdir()] == ["größe.txt"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = tmp_path / "record.json"
    path.write_text("old", encoding="utf-8")
    monkeypatch.setattr(atomic.os, call, _fail)
    with pytest.raises(OSError, match="Input/output error"):
        atomic.write_text(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["record.json"]


def test_a_full_disk_keeps_the_old_file(small_disk: Path) -> None:
    path = small_disk / "record.json"
    atomic.write_text(path, "old")
    with pytest.raises(OSError, match="No space left on device"):
        atomic.write_text(path, "x" * 2 * 1024 * 1024)
    assert path.read_text(encoding="utf-8") == "old"
    assert [item.name for item in small_disk.iterdir()] == ["record.json"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}], ids=["nan", "inf", "nested"])
def test_json_refuses_what_other_readers_do_not_know(tmp_path: Path, value: object) -> None:
    path = tmp_path / "record.json"
    atomic.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
        atomic.write_json(path, value)
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": 1}


def test_three_readers_never_see_a_part(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    atomic.write_json(path, ["0"] * 20_000)
    done = threading.Event()
    seen: list[set[str]] = [set(), set(), set()]

    def read(values: set[str]) -> None:
        while not done.is_set():
            content = json.loads(path.read_text(encoding="utf-8"))
            assert len(content) == 20_000
            assert len(set(content)) == 1
            values.add(content[0])

    # A reader that dies on a part fails the test: an exception in a thread is a warning, and warnings are errors.
    readers = [threading.Thread(target=read, args=(values,)) for values in seen]
    for reader in readers:
        reader.start()
    version = 0
    while version < 20 or (min(map(len, seen)) < 2 and version < 500):
        version += 1
        atomic.write_json(path, [str(version)] * 20_000)
    done.set()
    for reader in readers:
        reader.join()
    assert min(map(len, seen)) >= 2, "a reader saw no change: this run proved nothing"
