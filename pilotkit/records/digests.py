"""SHA-256 beside the reading or writing of a file, in a thread of its own.

hashlib lets go of the interpreter lock, and so does a read or a write: the digest costs a second core and not more
seconds, as long as it is faster than the disk. Used by `manifest` for files that are there, by `train.tensor_files` for
those that are written.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

CHUNK_BYTES = 4 * 1024**2
INLINE_BYTES = 64 * 1024
"""Of a piece or a whole file; below this, handing it to another thread costs more than the digest itself."""
FLUSH_BYTES = (8 * 1024**2, 64 * 1024**2)
"""The disk begins with what is written before the last byte is there: a flush at the end alone finds it idle. The first
comes early, for small files; each waits for twice as much as the one before, up to the second figure, as flushes of a
large file hold up its writing."""


def sha256_of(path: Path) -> tuple[int, str]:
    """Bytes and SHA-256 (hex) of a file: the next piece is read while the last one is digested. Raises OSError."""
    if path.stat().st_size < INLINE_BYTES:
        content = path.read_bytes()
        return len(content), hashlib.sha256(content).hexdigest()
    digest = hashlib.sha256()
    num_bytes = 0
    buffers = [memoryview(bytearray(CHUNK_BYTES)) for _ in range(2)]
    pending: Future[None] | None = None
    with open(path, "rb", buffering=0) as stream, ThreadPoolExecutor(1) as pool:
        while count := stream.readinto(buffers[0]):
            num_bytes += count
            if pending is not None:
                pending.result()
            pending = pool.submit(digest.update, buffers[0][:count])
            buffers.reverse()
    return num_bytes, digest.hexdigest()


class DigestedStream(io.IOBase):
    """A binary file for writing, from its first byte to its last, that knows its digest when it is closed.

    No seeking: what is written is digested in the order in which it comes. `on_closed` is given bytes and SHA-256.
    """

    def __init__(self, raw: io.IOBase, *, on_closed: Callable[[int, str], None]) -> None:
        self._raw: Any = raw
        self._on_closed = on_closed
        self._digest = hashlib.sha256()
        self._num_bytes = 0
        self._unflushed = 0
        self._flush_bytes = FLUSH_BYTES[0]
        self._digester = ThreadPoolExecutor(1)
        self._flusher = ThreadPoolExecutor(1)
        self._flush: Future[None] | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """All of `data`; its memory may be used again when this returns."""
        view = memoryview(data).cast("B")
        if len(view) < INLINE_BYTES:
            self._digest.update(view)
            self._raw.write(view)
        else:
            digested = self._digester.submit(self._digest.update, view)
            try:
                self._raw.write(view)
            finally:
                digested.result()
        self._num_bytes += len(view)
        self._unflushed += len(view)
        if self._unflushed >= self._flush_bytes and (self._flush is None or self._flush.done()):
            if self._flush is not None:
                self._flush.result()
            self._unflushed = 0
            self._flush_bytes = min(2 * self._flush_bytes, FLUSH_BYTES[1])
            self._flush = self._flusher.submit(os.fdatasync, self._raw.fileno())
        return len(view)

    def tell(self) -> int:
        return self._num_bytes

    def flush(self) -> None:
        if not self.closed:
            self._raw.flush()

    def fileno(self) -> int:
        """Whoever asks for it goes below the buffer, as fsync does: torch calls that before the buffer is written."""
        self._raw.flush()
        descriptor: int = self._raw.fileno()
        return descriptor

    def close(self) -> None:
        """Tells the digest; the file below is closed by who opened it."""
        if self.closed:
            return
        super().close()
        self._digester.shutdown()
        self._flusher.shutdown()
        if self._flush is not None:
            self._flush.result()
        self._on_closed(self._num_bytes, self._digest.hexdigest())
