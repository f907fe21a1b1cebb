"""How torch.distributed.checkpoint writes and reads the files of a checkpoint here. Used by `checkpoint` and `saving`.

The files are torch's own (`dcp_to_torch_save` reads them). The writer knows the digest of a file when it is written.
The reader resolves no name of a pickle but those of tensors, and reads the bytes of a whole tensor straight to where
they belong; torch's reader makes a tensor for them first.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import DEFAULT_SUFFIX, FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from pilotkit.errors import CheckpointError
from pilotkit.records import manifest
from pilotkit.records.checkpoint_check import INDEX_FILE
from pilotkit.records.digests import DigestedStream
from pilotkit.records.pickles import FileSlice
from pilotkit.records.tensor_index import load_index

LOCAL_HEADER_BYTES = 30  # of a zip archive, before the name and the extra field
STORAGES = {  # the words that torch.save has for dtypes; one that is not here goes torch's own way
    torch.float64: "DoubleStorage",
    torch.float32: "FloatStorage",
    torch.float16: "HalfStorage",
    torch.bfloat16: "BFloat16Storage",
    torch.int64: "LongStorage",
    torch.int32: "IntStorage",
    torch.uint8: "ByteStorage",
    torch.bool: "BoolStorage",
}


SPLIT_BYTES = 64 * 1024**2


def num_files_for(tensors: Iterable[Tensor], *, on_cpu: bool) -> int:
    """How many files a rank writes side by side: two where that saves time and its threads' memory does not matter.

    From an accelerator it is one: torch copies ahead only then. A small save is over at once, and where a limit on this
    process's memory stands in for a device's, stacks of further threads must not count as the model's.
    """
    num_bytes = sum((tensor.to_local() if isinstance(tensor, DTensor) else tensor).nbytes for tensor in tensors)
    return 2 if on_cpu and num_bytes >= SPLIT_BYTES else 1


class TensorWriter(FileSystemWriter):
    """DCP's writer; `entries` describes every file that this rank has written.

    Of two files side by side, torch sums up one for its archive while the other is digested, which both take as long
    as the disk.
    """

    def __init__(self, folder: Path, *, num_files: int) -> None:
        super().__init__(folder, thread_count=num_files)
        self._digested = _DigestedFiles()
        self.fs = self._digested

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Raises what any of torch's threads ran into, which torch itself loses but for the first of them."""
        written = super().write_data(plan, planner)
        if self._digested.failures:
            raise self._digested.failures[0]
        num_written = len(written.value())
        if num_written != len(plan.items):  # a file that could not even be opened
            raise CheckpointError(f"{num_written} of {len(plan.items)} tensors were written")
        return written

    @property
    def entries(self) -> list[manifest.Entry]:
        return self._digested.entries


class _DigestedFiles(FileSystem):
    """Files whose digest is made while they are written.

    `failures`: what went wrong with any that holds tensors. Kept for `TensorWriter.write_data` and not raised: a thread
    of torch would end with it, or its first one before the others have ended.
    """

    def __init__(self) -> None:
        self.entries: list[manifest.Entry] = []
        self.failures: list[Exception] = []

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[io.IOBase]:
        # DCP writes its index aside, and renames it.
        name = Path(path).name.removesuffix(".tmp")

        def closed(num_bytes: int, sha256: str) -> None:
            self.entries.append(manifest.Entry(name, num_bytes, sha256))

        is_open = False
        try:
            with super().create_stream(path, mode) as raw:
                is_open = True
                stream = DigestedStream(raw, on_closed=closed) if "w" in mode else None
                try:
                    yield stream or raw
                finally:
                    if stream is not None:
                        stream.close()
        except Exception as error:
            if not is_open or not name.endswith(DEFAULT_SUFFIX):
                raise
            self.failures.append(_cause_of(error))


def _cause_of(error: Exception) -> Exception:
    """What went wrong first: torch's archive is closed after an error, and then raises one of its own."""
    first: BaseException = error
    while isinstance(first, RuntimeError) and "unexpected pos" in str(first) and first.__context__ is not None:
        first = first.__context__
    return first if isinstance(first, Exception) else error


class TensorReader(FileSystemReader):
    """DCP's reader, with an index that is not unpickled blindly."""

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        del args, kwargs
        metadata: Metadata = load_index(Path(self.path) / INDEX_FILE, resolve=_class_of)
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        for place in (metadata.storage_data or {}).values():
            if Path(place.relative_path).name != place.relative_path:
                raise CheckpointError(f"{self.path}: its index names a file outside: {place.relative_path}")
        return metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """In the order in which the bytes lie on the disk; what is not a whole tensor in one piece is torch's."""
        left: list[ReadItem] = []
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self.storage_data[item.storage_index].relative_path, []).append(item)
        for name, items in sorted(by_file.items()):
            with open(Path(self.path) / name, "rb", buffering=0) as stream:
                for item in sorted(items, key=lambda item: int(self.storage_data[item.storage_index].offset)):
                    if not self._read_straight(stream, item, planner):
                        left.append(item)
        return super().read_data(LoadPlan(left), planner)

    def _read_straight(self, stream: io.RawIOBase, item: ReadItem, planner: LoadPlanner) -> bool:
        place = self.storage_data[item.storage_index]
        if item.type != LoadItemType.TENSOR or place.transform_descriptors or any(item.storage_offsets):
            return False
        target = planner.resolve_tensor(item).detach()
        record = _record_in(stream, place.offset, place.length)
        if record is None or not record.is_like(target):
            return False
        stream.seek(place.offset + record.offset)
        view = memoryview(cast(Any, target.reshape(-1).view(torch.uint8).numpy()))
        while len(view):
            count = stream.readinto(view)
            if not count:
                raise CheckpointError(f"{self.path}/{place.relative_path}: ends in the middle of a tensor")
            view = view[count:]
        planner.commit_tensor(item, target)
        return True


@dataclass(frozen=True)
class _Record:
    """The bytes of one tensor in a slice of a file, and what its pickle says of them."""

    offset: int
    num_bytes: int
    storage: str
    storage_offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def is_like(self, target: Tensor) -> bool:
        """Whether the bytes can go there as they are."""
        return (
            target.device.type == "cpu"
            and target.is_contiguous()
            and self.storage_offset == 0
            and self.storage == STORAGES.get(target.dtype)
            and self.size == tuple(target.shape)
            and self.stride == target.stride()
            and self.num_bytes == target.nbytes > 0
        )


@dataclass(frozen=True)
class _About:
    """The arguments of `torch._utils._rebuild_tensor_v2`, of which the storage is told by its type."""

    storage: str
    storage_offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class _TensorPickle(pickle.Unpickler):
    """What torch.save wrote of one plain tensor, with nothing executed; anything else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, size, stride, *_: _About(storage, offset, tuple(size), tuple(stride))
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if module == "torch" and name in STORAGES.values():
            return name
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> str:
        """("storage", its type, key, device, number of elements)."""
        return str(pid[1])


def _record_in(stream: Any, start: int, length: int) -> _Record | None:
    """What torch.save wrote there, when it is one tensor in native byte order; None when it is anything else."""
    try:
        with zipfile.ZipFile(cast(Any, FileSlice(stream, start, length))) as archive:
            [data] = [info for info in archive.infolist() if "/data/" in info.filename]
            folder = data.filename.partition("/")[0]
            about = _TensorPickle(io.BytesIO(archive.read(f"{folder}/data.pkl"))).load()
            is_native = archive.read(f"{folder}/byteorder") == sys.byteorder.encode()
    except (zipfile.BadZipFile, pickle.UnpicklingError, KeyError, ValueError, TypeError, IndexError):
        return None
    if data.compress_type != zipfile.ZIP_STORED or not is_native or not isinstance(about, _About):
        return None
    stream.seek(start + data.header_offset)
    header = stream.read(LOCAL_HEADER_BYTES)
    lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    offset = data.header_offset + LOCAL_HEADER_BYTES + lengths
    return _Record(offset, data.file_size, about.storage, about.storage_offset, about.size, about.stride)


def _class_of(module: str, name: str) -> object:
    """A name that `tensor_index` has found harmless. Paths written by another Python's pathlib are this one's."""
    return getattr(importlib.import_module("pathlib" if module.startswith("pathlib") else module), name)
