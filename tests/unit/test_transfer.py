"""Bytes in and out on the real disk: rates, digests, and what is said when a copy cannot arrive."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pilotkit import transfer
from pilotkit.errors import OutputError
from pilotkit.transfer import copy_verified, time_reading


@pytest.fixture
def source(odd_tmp_path: Path) -> Path:
    folder = odd_tmp_path / "checkpoint"
    (folder / "shards").mkdir(parents=True)
    (folder / "shards" / "rank 0.pt").write_bytes(bytes(range(256)) * 40_000)  # 10.24 MB, three pieces
    (folder / "manifest.json").write_text("{}", encoding="utf-8")
    return folder


def test_a_folder_is_read_and_timed(source: Path) -> None:
    found = time_reading(source, max_bytes=10**9)
    assert (found.num_bytes, found.total_bytes, found.num_files) == (10_240_002, 10_240_002, 2)
    assert found.seconds > 0
    assert found.total_seconds == pytest.approx(found.seconds)
    assert found.bytes_per_second == pytest.approx(10_240_002 / found.seconds)


def test_a_large_source_is_read_in_part(source: Path) -> None:
    found = time_reading(source / "shards" / "rank 0.pt", max_bytes=5_000_000)
    assert (found.num_bytes, found.total_bytes) == (5_000_000, 10_240_000)
    assert found.total_seconds == pytest.approx(found.seconds * 2.048)


def test_a_copy_arrives_whole(source: Path, odd_tmp_path: Path) -> None:
    destination = odd_tmp_path / "away" / "run"
    copied = copy_verified(source, destination)
    assert (destination / "shards" / "rank 0.pt").read_bytes() == (source / "shards" / "rank 0.pt").read_bytes()
    assert (copied.num_bytes, copied.num_files) == (10_240_002, 2)
    digest = hashlib.sha256()
    for name in ("manifest.json", "shards/rank 0.pt"):
        data = (source / name).read_bytes()
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    assert copied.digest == digest.hexdigest()


def test_a_copy_that_is_not_the_same_is_told_and_removed(
    source: Path, odd_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = transfer._copy_file

    def flip_a_byte(path: Path, target: Path, **how: object) -> None:
        real(path, target, **how)  # type: ignore[arg-type]
        data = bytearray(target.read_bytes())
        data[-1] ^= 1
        target.write_bytes(bytes(data))

    monkeypatch.setattr(transfer, "_copy_file", flip_a_byte)
    with pytest.raises(OutputError, match="is not what was sent"):
        copy_verified(source, odd_tmp_path / "away")
    assert not (odd_tmp_path / "away").exists()


def test_a_place_that_takes_nothing(source: Path, odd_tmp_path: Path) -> None:
    (odd_tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(OutputError, match="nothing can be copied to"):
        copy_verified(source, odd_tmp_path / "file" / "below")
    with pytest.raises(OutputError, match="File exists"):
        copy_verified(source, source)
    assert (source / "manifest.json").is_file()


def test_nothing_to_read(odd_tmp_path: Path) -> None:
    found = time_reading(odd_tmp_path, max_bytes=10)
    assert (found.num_bytes, found.bytes_per_second, found.total_seconds) == (0, 0.0, 0.0)
