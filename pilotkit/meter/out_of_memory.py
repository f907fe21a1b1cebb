"""What running out of memory looks like: out of memory is a result, and has to be told from every other error.

Called where a worker fails, and usable in anybody's script. Reads the error and its text; asks no device.
"""

from __future__ import annotations

import errno
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pilotkit.units import GIB, KIB, MIB, TIB


@dataclass(frozen=True)
class OutOfMemory:
    """What ran out: the size of the request that failed, bytes, where the message has it, and the message itself."""

    requested_bytes: int | None
    text: str


_OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator: (can't allocate|not enough) memory"
    r"|std::bad_alloc"
    r"|(CUDA|HIP) out of memory"
    r"|(CUDA|HIP) error: out of memory"
    r"|(Cuda|HIP) failure \d+ '?out of memory"  # as NCCL and RCCL say it
    r"|CUBLAS_STATUS_ALLOC_FAILED|HIPBLAS_STATUS_ALLOC_FAILED"
    r"|Cannot allocate memory",
    re.IGNORECASE,
)
# oneDNN says no more than this when code or scratch memory for a kernel cannot be had. Without a limit on this process
# it may mean something else. (A kernel that does not exist fails earlier, at its "primitive descriptor".)
_OUT_OF_MEMORY_IF_LIMITED = re.compile(r"could not (create|execute) a primitive$", re.MULTILINE)
_REQUESTED = re.compile(
    r"(?:tried to allocate|unable to allocate|unable to mmap) (\d+(?:\.\d+)?) ?(bytes|[KMGT]iB)", re.IGNORECASE
)
_UNIT_BYTES = {"bytes": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB}


def is_out_of_memory(error: BaseException) -> OutOfMemory | None:
    """Whether `error`, or an error that led to it, is a failed allocation on the CPU or an accelerator; else None."""
    for link in _chain(error):
        text = str(link)
        if _says_out_of_memory(link, text):
            found = _REQUESTED.search(text)
            requested = round(float(found[1]) * _UNIT_BYTES[found[2].lower()]) if found else None
            return OutOfMemory(requested, text or type(link).__name__)
    return None


def _says_out_of_memory(error: BaseException, text: str) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    limited = resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
    return bool(_OUT_OF_MEMORY.search(text) or (limited and _OUT_OF_MEMORY_IF_LIMITED.search(text)))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """`error` and what led to it, as a traceback would show it; a cycle is walked once."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
