"""Running out of memory is told from every other error, on every kind of device."""

from __future__ import annotations

import errno

import pytest
import torch

from pilotkit.meter.out_of_memory import OutOfMemory, is_out_of_memory

GIB = 1024**3


@pytest.mark.parametrize(
    ("error", "requested_bytes"),
    [
        pytest.param(
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
                "you tried to allocate 104857600 bytes. Error code 12 (Cannot allocate memory)"
            ),
            104857600,
            id="torch on the CPU",
        ),
        pytest.param(RuntimeError("std::bad_alloc"), None, id="C++"),
        pytest.param(MemoryError(), None, id="Python"),
        pytest.param(MemoryError("Unable to allocate 1.50 GiB for an array"), 1610612736, id="numpy"),
        pytest.param(
            torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.1 GiB"
            ),
            2 * GIB,
            id="CUDA",
        ),
        pytest.param(
            RuntimeError("HIP out of memory. Tried to allocate 512.00 MiB. GPU 0 has"), 512 * 1024**2, id="HIP"
        ),
        pytest.param(RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), None, id="CUDA runtime"),
        pytest.param(
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), None, id="cuBLAS"
        ),
        pytest.param(RuntimeError("NCCL error: Cuda failure 2 'out of memory'"), None, id="NCCL"),
        pytest.param(OSError(errno.ENOMEM, "Cannot allocate memory"), None, id="fork"),
    ],
)
def test_out_of_memory_is_recognised(error: BaseException, requested_bytes: int | None) -> None:
    assert is_out_of_memory(error) == OutOfMemory(requested_bytes, str(error) or "MemoryError")


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"), id="shapes"),
        pytest.param(RuntimeError("CUDA error: device-side assert triggered"), id="device assert"),
        pytest.param(RuntimeError("could not create a primitive"), id="oneDNN without a limit"),
        pytest.param(ValueError("CUDA out of memory"), id="another type"),
        pytest.param(OSError(errno.ENOSPC, "No space left on device"), id="disk"),
        pytest.param(KeyError("memory"), id="KeyError"),
    ],
)
def test_other_errors_are_not_out_of_memory(error: BaseException) -> None:
    assert is_out_of_memory(error) is None


@pytest.mark.parametrize(
    ("message", "recognised"),
    [
        pytest.param("could not create a primitive", True, id="primitive"),
        pytest.param("could not create a primitive descriptor for a matmul primitive", False, id="descriptor"),
    ],
)
def test_onednn_under_a_limit(monkeypatch: pytest.MonkeyPatch, message: str, recognised: bool) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (GIB, GIB))
    assert (is_out_of_memory(RuntimeError(message)) is not None) is recognised


def raise_from(*, cause: BaseException | None, hidden: bool) -> None:
    try:
        raise RuntimeError("std::bad_alloc")
    except RuntimeError:
        if hidden:
            raise KeyError("batch") from None
        if cause is not None:
            raise KeyError("batch") from cause
        raise KeyError("batch")  # noqa: B904 - the implicit context is what is tested


@pytest.mark.parametrize(
    ("cause", "hidden", "recognised"),
    [
        pytest.param(None, False, True, id="context"),
        pytest.param(MemoryError(), False, True, id="cause"),
        pytest.param(None, True, False, id="from None says that it is another matter"),
    ],
)
def test_the_chain_is_walked(cause: BaseException | None, hidden: bool, recognised: bool) -> None:
    with pytest.raises(KeyError) as raised:
        raise_from(cause=cause, hidden=hidden)
    assert (is_out_of_memory(raised.value) is not None) is recognised


def test_a_cycle_of_causes_ends() -> None:
    first, second = RuntimeError("one"), RuntimeError("two")
    first.__cause__, second.__cause__ = second, first
    assert is_out_of_memory(first) is None
