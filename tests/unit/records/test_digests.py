"""Digests beside reading and writing: the same as those of the whole, whatever the pieces."""

from __future__ import annotations

import hashlib
import os

import pytest

from pilotkit.records import digests
from pilotkit.records.digests import DigestedStream, sha256_of


@pytest.mark.parametrize("size", [0, 1, digests.CHUNK_BYTES, digests.CHUNK_BYTES + 1, 3 * digests.CHUNK_BYTES + 7])
def test_of_a_file(size, tmp_path):
    content = os.urandom(size)
    (tmp_path / "f").write_bytes(content)
    assert sha256_of(tmp_path / "f") == (size, hashlib.sha256(content).hexdigest())


def test_of_what_is_written_in_pieces_of_any_size(tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "FLUSH_BYTES", (100_000, 100_000))  # several flushes fall between the pieces
    pieces = [os.urandom(size) for size in (0, 7, digests.INLINE_BYTES, 300_000, 1, 250_000)]
    told = []
    with open(tmp_path / "f", "wb") as raw:
        stream = DigestedStream(raw, on_closed=lambda *what: told.append(what))
        for piece in pieces:
            assert stream.write(memoryview(piece)) == len(piece)
            # The memory is the writer's again as soon as the call returns.
        assert stream.tell() == sum(map(len, pieces))
        stream.close()
        stream.close()
    whole = b"".join(pieces)
    assert (tmp_path / "f").read_bytes() == whole
    assert told == [(len(whole), hashlib.sha256(whole).hexdigest())]


def test_memory_that_is_used_again_after_a_write_changes_nothing(tmp_path):
    buffer = bytearray(b"a" * 1_000_000)
    told = []
    with open(tmp_path / "f", "wb") as raw:
        stream = DigestedStream(raw, on_closed=lambda *what: told.append(what))
        stream.write(buffer)
        buffer[:] = b"b" * len(buffer)
        stream.close()
    assert told == [(1_000_000, hashlib.sha256(b"a" * 1_000_000).hexdigest())]


def test_a_write_that_fails_is_not_swallowed(tmp_path):
    (tmp_path / "f").write_bytes(b"")
    with open(tmp_path / "f", "rb") as raw:  # not open for writing
        stream = DigestedStream(raw, on_closed=lambda *what: None)
        with pytest.raises(OSError, match="write"):
            stream.write(b"x" * digests.INLINE_BYTES)
        stream.close()
