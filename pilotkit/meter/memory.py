"""Bytes of live tensors, counted operator by operator. Called for the memory steps of a measurement on the CPU,
which has no allocator statistics; works on fake tensors of any device type as well.

Sees what operators return: activations kept for backward, gradients, optimizer state, what communication gathers.
Does not see scratch memory inside one kernel. What torch.compile made runs uncompiled under it: `meter.allocations` is
the one that sees compiled code. Slows every operator down (by some 20 microseconds each), so steps that are timed run
without it. Never keeps a tensor alive.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from pilotkit.meter.uncompiled import uncompiled


class LiveTensorTracker:
    """Context manager that counts the bytes of live tensor storages on one device type.

    A storage is counted once, at its full size, however many views it has, and until its last tensor is gone.
    Register what exists before with `track`; what operators make inside the context is found by itself.
    Sizes are what was asked of the allocator: alignment and caching are not in them.

        tracker = LiveTensorTracker()
        tracker.track(model, optimizer, batch)
        with tracker:
            one_step()
        tracker.peak_bytes
    """

    def __init__(self, *, device_type: str = "cpu", told: Callable[[int, int], None] | None = None) -> None:
        """`told(storage, size)` hears of every change: the storage's key and its new size, 0 when it is gone."""
        self.live_bytes = 0
        self.peak_bytes = 0
        self._device_type = device_type
        self._told = told
        self._sizes: dict[int, int] = {}
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._entered = ExitStack()

    def track(self, *held: nn.Module | torch.optim.Optimizer | Tensor | Iterable[Any]) -> None:
        """Count tensors that exist already: modules (parameters, buffers, gradients), optimizers (state), tensors,
        and mappings or other iterables of these. Values of another kind are passed over."""
        for item in held:
            for tensor in _tensors(item):
                self._see(tensor)

    def reset_peak(self) -> None:
        """Let the peak start again from what is live now."""
        self.peak_bytes = self.live_bytes

    def __enter__(self) -> LiveTensorTracker:
        with ExitStack() as stack:
            stack.enter_context(uncompiled())
            stack.enter_context(watch_resize(self._resized))
            stack.enter_context(_Watch(self._see))
            self._entered = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.close()

    def _see(self, tensor: Tensor) -> None:
        for part in plain_tensors(tensor):
            if part.device.type == self._device_type:
                self._count(part.untyped_storage())

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        known = self._sizes.get(key)
        if known == size:
            return
        if known is None:
            # torch keeps the Python object of a storage as long as the storage itself, so the reference
            # dies with the memory, and before its address can be used again.
            self._storages[key] = weakref.ref(storage, partial(self._forget, key))
        self._sizes[key] = size
        self.live_bytes += size - (known or 0)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        if self._told is not None:
            self._told(key, size)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self._sizes:
            self._count(storage)

    def _forget(self, key: int, _reference: weakref.ref[torch.UntypedStorage]) -> None:
        self.live_bytes -= self._sizes.pop(key)
        del self._storages[key]
        if self._told is not None:
            self._told(key, 0)


class _Watch(TorchDispatchMode):
    """Shows every tensor that an operator returns to `see`. A base class because torch asks for one."""

    def __init__(self, see: Callable[[Tensor], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's class has no types
        self._see = see

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # A wrapper (DTensor) first turns into operators on the tensors inside it; those come back here.
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        body = torchs_own_body(func)
        if body is not None:
            with torch._C._AutoDispatchBelowAutograd(), self:
                return body(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        for tensor in _returned(result):
            self._see(tensor)
        return result


def torchs_own_body(func: Any) -> Callable[..., Any] | None:
    """The Python function behind an operator of torch.nn (its chunked cross entropy), or None: what it allocates and
    frees inside is no kernel's scratch memory, and would go unseen."""
    if func.namespace != "torch_nn":
        return None
    definition = _definitions().get(func.name())
    return getattr(definition, "_init_fn", None)


@functools.cache
def _definitions() -> Any:
    from torch._library import custom_ops

    return getattr(custom_ops, "OPDEFS", {})


@contextmanager
def watch_resize(resized: Callable[[torch.UntypedStorage], None]) -> Iterator[None]:
    """FSDP frees and refills parameters with `UntypedStorage.resize_`, which is no operator and would go unseen."""
    storage_class: Any = torch.UntypedStorage  # its methods are replaced for the time of the context
    original = storage_class.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        resized(storage)
        return result

    storage_class.resize_ = resize_
    try:
        yield
    finally:
        storage_class.resize_ = original


def _returned(result: Any) -> Iterator[Tensor]:
    """Tensors in what an operator returned: one, a list, a list of lists, or none."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for item in result:
            yield from _returned(item)


def plain_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors with a storage that `tensor` consists of: itself, or the parts of a wrapper or a sparse tensor."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            part = getattr(tensor, name)
            if isinstance(part, Tensor):  # DTensor names its mesh, too
                yield from plain_tensors(part)
    elif tensor.layout is torch.strided:
        yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())


def _tensors(held: Any) -> Iterator[Tensor]:
    if isinstance(held, Tensor):
        yield held
        if held.is_leaf and held.grad is not None:
            yield held.grad
    elif isinstance(held, nn.Module):
        yield from _tensors([*held.parameters(), *held.buffers()])
    elif isinstance(held, torch.optim.Optimizer):
        yield from _tensors(held.state)
    elif isinstance(held, dict):
        yield from _tensors(held.values())
    elif isinstance(held, Iterable) and not isinstance(held, (str, bytes)):
        for item in held:
            yield from _tensors(item)
