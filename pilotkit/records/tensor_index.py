"""The index of tensors in a checkpoint (`.metadata` of torch.distributed.checkpoint), read without running its content.

torch keeps it as a pickle, and unpickles it without asking. Here only the few names that an index is made of are
resolved; a pickle that asks for any other is refused with the reason. Without torch (the driver's side) they become
plain stand-ins, so a checkpoint can be checked where torch does not even import. Called by `checkpoint_check` and, with
the real classes, by `train.checkpoint`.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotkit.errors import CheckpointError

_PLANS = "torch.distributed.checkpoint"
DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16"),
    *("float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
)
ALLOWED = frozenset(
    {
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),  # Python 3.13
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        (f"{_PLANS}.filesystem", "_StorageInfo"),
        (f"{_PLANS}.metadata", "ChunkStorageMetadata"),
        (f"{_PLANS}.metadata", "Metadata"),
        (f"{_PLANS}.metadata", "MetadataIndex"),
        (f"{_PLANS}.metadata", "StorageMeta"),
        (f"{_PLANS}.metadata", "TensorProperties"),
        (f"{_PLANS}.metadata", "TensorStorageMetadata"),
        (f"{_PLANS}.metadata", "_MEM_FORMAT_ENCODING"),
        *(("torch", name) for name in DTYPES),
    }
)
Resolve = Callable[[str, str], Any]


@dataclass(frozen=True)
class SavedTensor:
    """One tensor of a checkpoint: its name, dtype (torch's word), shape, and the pieces it was saved in."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_chunks: int


@dataclass(frozen=True)
class Piece:
    """Where one piece of a tensor lies: file, first byte, bytes."""

    name: str
    file: str
    offset: int
    length: int


class _Refused(pickle.UnpicklingError):
    """The pickle asks for something that no index of tensors needs."""


class _IndexUnpickler(pickle.Unpickler):
    """Resolves the allowed names through `resolve`, and nothing else."""

    def __init__(self, content: bytes, resolve: Resolve) -> None:
        super().__init__(io.BytesIO(content))
        self._resolve = resolve

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise _Refused(f"it holds a pickled {module}.{name}, and loading executes nothing")
        return self._resolve(module, name)


def load_index(path: Path, *, resolve: Resolve) -> Any:
    """Unpickle the index with the given classes. Raises CheckpointError when it holds anything else, or is damaged."""
    try:
        return _IndexUnpickler(path.read_bytes(), resolve).load()
    except _Refused as error:
        raise CheckpointError(f"{path}: refused: {error}") from error
    except Exception as error:  # a damaged pickle raises whatever its last opcode ran into
        raise CheckpointError(f"{path}: cannot be read ({type(error).__name__}: {error})") from error


def read_tensors(path: Path, *, file_sizes: dict[str, int]) -> tuple[list[SavedTensor], list[Piece]]:
    """Every tensor in the order of names, and every piece of them; without torch.

    Raises CheckpointError as `load_index`, and when a piece lies outside the files (`file_sizes` in bytes, by name), or
    when the pieces of a tensor do not make the whole.
    """
    index = load_index(path, resolve=_stand_in)
    tensors, problems = [], []
    for name, value in sorted(index.state_dict_metadata.items()):
        if not hasattr(value, "chunks"):
            problems.append(f"{path}: {name} is not a tensor but a pickled value, and loading executes nothing")
            continue
        shape = tuple(value.size)
        num_elements = sum(_product(chunk.sizes) for chunk in value.chunks)
        if num_elements != _product(shape):
            problems.append(f"{path}: {name}: {num_elements} elements saved of {_product(shape)}")
        tensors.append(SavedTensor(name, str(_dtype_of(value)), shape, len(value.chunks)))
    pieces = []
    for place, piece in index.storage_data.items():
        pieces.append(Piece(place.fqn, piece.relative_path, piece.offset, piece.length))
        if piece.offset + piece.length > file_sizes.get(piece.relative_path, -1):
            problems.append(f"{path}: {place.fqn}: a piece lies outside {piece.relative_path}")
    if problems:
        raise CheckpointError("\n".join(problems))
    return tensors, pieces


class _StandIn:
    """Holds what a dataclass of torch would: constructor arguments, or the attributes of its state."""

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state
        if isinstance(state, dict):
            self.__dict__.update(state)


class _Size(tuple[int, ...]):
    """torch.Size is a tuple of ints."""

    __slots__ = ()


class _Index(_StandIn):
    """MetadataIndex is a key of a dict, and so has to be hashed before its state has come."""

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class _DType(str):
    """A dtype, by its name."""

    __slots__ = ()


def _stand_in(module: str, name: str) -> Any:
    if (module, name) == ("torch", "Size"):
        return _Size
    if name == "MetadataIndex":
        return _Index
    if module == "torch":
        return _DType(name)
    return _StandIn


def _dtype_of(value: Any) -> str:
    """TensorProperties keeps its fields as a tuple, dtype first (`TensorProperties.__getstate__`)."""
    state = value.properties.state
    return str(state[0] if isinstance(state, tuple) else state["dtype"])


def _product(sizes: Any) -> int:
    total = 1
    for size in sizes:
        total *= int(size)
    return total
