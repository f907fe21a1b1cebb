"""Would loading this file execute something? Found without torch, by unpickling with inert stand-ins for every name.

Called by `checkpoint_check`. What a file is, its first bytes say, and not its name. torch's own files are zip archives
with a `data.pkl` in them, of which `torch.load(weights_only=True)` resolves only what makes tensors; a pickle that asks
for anything else is named here.
"""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pilotkit.records.tensor_index import DTYPES, Piece

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
BINARY_PICKLE = re.compile(rb"\x80[\x02-\x05]")
# What torch writes for tensors and plain containers: all that a file of weights needs.
PLAIN = {
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter",
    "torch.Size",
    "torch.device",
    "torch.serialization._get_layout",
    "_codecs.encode",
    *(f"torch.{name}" for name in DTYPES),
}
STORAGE = re.compile(r"torch\.([A-Z][A-Za-z0-9]*Storage|storage\.UntypedStorage)")
# torch's form before 1.6: magic number, protocol, machine, the object, names of the storages; raw bytes follow.
MOST_PICKLES = 5


def refused_pickle(path: Path) -> str | None:
    """Why a file would not be loaded, naming it; None when it holds no pickle, or only tensors and plain values."""
    try:
        with open(path, "rb") as stream:
            is_one = path.suffix in SUFFIXES or zipfile.is_zipfile(stream) or _begins_like_one(stream)
            for content in _streams_of(stream) if is_one else []:
                _walk(content)
    except _Foreign as error:
        return f"{path}: refused: it holds a pickled {error}, and loading executes nothing"
    except Exception as error:  # a damaged pickle raises whatever its last opcode ran into
        return f"{path}: cannot be read ({type(error).__name__}: {error})"
    return None


def refused_pieces(path: Path, pieces: Iterable[Piece]) -> list[str]:
    """The same for a file of many tensors, each of which is an archive of its own."""
    problems = []
    with open(path, "rb") as stream:
        for piece in pieces:
            try:
                for content in _streams_of(FileSlice(stream, piece.offset, piece.length)):
                    _walk(content)
            except _Foreign as error:
                problems.append(
                    f"{path}: {piece.name}: refused: it holds a pickled {error}, and loading executes nothing"
                )
            except Exception as error:
                problems.append(f"{path}: {piece.name}: cannot be read ({type(error).__name__}: {error})")
    return problems


class FileSlice(io.RawIOBase):
    """A part of a file as a file of its own, for zipfile."""

    def __init__(self, stream: Any, start: int, length: int) -> None:
        self._stream, self._start, self._length, self._place = stream, start, length, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._length}[whence]
        self._place = max(base + offset, 0)
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)[: max(self._length - self._place, 0)]
        self._stream.seek(self._start + self._place)
        count: int = self._stream.readinto(view)
        self._place += count
        return count


class _Foreign(Exception):
    """The dotted name that is not one of tensors."""


class _Inert(dict[Any, Any]):
    """Takes whatever a pickle does to an object, and does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        del state

    def __hash__(self) -> int:  # type: ignore[override]  # a key of a dict may be one
        return id(self)


class _InertUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        dotted = f"{module}.{name}"
        if dotted not in PLAIN and not STORAGE.fullmatch(dotted):
            raise _Foreign(dotted)
        return _Inert

    def persistent_load(self, pid: Any) -> Any:
        """Where the bytes of a tensor lie; nobody reads them here."""
        del pid
        return _Inert()


def _walk(stream: io.BufferedIOBase) -> None:
    for number in range(MOST_PICKLES):
        try:
            found = _InertUnpickler(stream).load()
        except EOFError:
            if number == 0:
                raise
            return
        if number == 0 and not isinstance(found, int):
            return  # not the old form: one object is all there is


def _begins_like_one(stream: Any) -> bool:
    stream.seek(0)
    return BINARY_PICKLE.match(stream.read(2)) is not None


def _streams_of(stream: Any) -> list[io.BufferedIOBase]:
    if not zipfile.is_zipfile(stream):
        stream.seek(0)
        return [io.BytesIO(stream.read())]
    with zipfile.ZipFile(stream) as archive:
        return [io.BytesIO(archive.read(name)) for name in archive.namelist() if name.endswith(".pkl")]
