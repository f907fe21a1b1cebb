"""Where a trace looks into torch: every operator, the streams of FSDP, and what DTensor does for itself alone.

Entered by `recorder`, each a context that puts back what it replaced. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from pilotkit.estimate.fake import replaced
from pilotkit.meter.memory import torchs_own_body

META = torch.device("meta")
NOT_ELEMENTWISE = frozenset(f"aten::_foreach_{name}" for name in ("max", "mm", "norm", "powsum"))


class HasStream(Protocol):
    """Who is told the number of the stream that is entered; 0 is the main one."""

    stream: int


class Watch(TorchDispatchMode):
    """Hands every operator to `see`, which runs it. A base class because torch asks for one."""

    def __init__(self, see: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's class has no types
        self._see = see

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            # Half of all calls, and no kernel: answered as FakeTensorMode would, without the way through it.
            fake = args[0]
            return META if fake.fake_mode.in_kernel_invocation else fake.fake_device
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            if _is_elementwise_on_lists(func) and (specs := _common_specs(args)) is not None:
                return _on_local_tensors(partial(self._see, func), args, kwargs or {}, specs)
            # A wrapper (DTensor) first turns into operators on the tensors inside it; those come back here.
            return NotImplemented
        body = torchs_own_body(func)
        if body is not None:
            with torch._C._AutoDispatchBelowAutograd(), self:
                return body(*args, **(kwargs or {}))
        return self._see(func, args, kwargs or {})


def _is_elementwise_on_lists(func: Any) -> bool:
    """What optimizers run on lists of parameters: item by item and value by value. Of the fused ones those in place,
    which return nothing."""
    name = func._schema.name
    if name.startswith("aten::_fused_"):
        return bool(name.endswith("_"))
    return name.startswith("aten::_foreach_") and name not in NOT_ELEMENTWISE


def _common_specs(args: tuple[Any, ...]) -> list[Any] | None:
    """How the DTensors of all lists are spread, item by item; None where lists differ: DTensor knows how."""
    lists = [value for value in args if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor)]
    if not lists or not all(isinstance(value, DTensor) for values in lists for value in values):
        return None
    if any(isinstance(value, DTensor) for value in args):  # a norm that is still to be summed up
        return None
    specs = [value._spec for value in lists[0]]
    same = all([value._spec for value in values] == specs for values in lists[1:])
    return specs if same else None


def _on_local_tensors(
    run: Callable[[Any, Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any], specs: Sequence[Any]
) -> Any:
    """What DTensor does for an operator that needs no communication, without asking first, which takes it a second."""
    local = [
        [item._local_tensor if isinstance(item, DTensor) else item for item in value]
        if isinstance(value, (list, tuple))
        else value
        for value in args
    ]
    result = run(tuple(local), kwargs)
    if result is None:
        return None
    return [DTensor(part, spec, requires_grad=False) for part, spec in zip(result, specs, strict=True)]


class CompilingWatch(Watch):
    """Lets torch.compile do its work, which it would leave undone under a mode, and sees what its graphs run."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Recomputation with random numbers: the state is kept on the host, the operator is one like any other.
        name = str(getattr(func, "_name", ""))
        if name == "run_and_save_rng_state":
            return torch.get_rng_state(), self._see(args[0], args[1:], kwargs or {})
        if name == "run_with_rng_state":
            return self._see(args[1], args[2:], kwargs or {})
        return super().__torch_dispatch__(func, types, args, kwargs)


@contextmanager
def watch_streams(holder: HasStream) -> Iterator[None]:
    """FSDP allocates on streams of its own, which share no free memory; on the processor they are stubs."""
    numbers = {id(torch.cpu.current_stream()): 0}

    @contextmanager
    def stream(entered: Any) -> Iterator[None]:
        before = holder.stream
        holder.stream = numbers.setdefault(id(entered), len(numbers) + 1) if entered is not None else 0
        try:
            yield
        finally:
            holder.stream = before

    with replaced(torch.cpu, "stream", stream):
        yield


@contextmanager
def quiet_propagation(paused: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """DTensor finds out shapes by running operators on fake tensors of the global shape, in the fake mode that is
    already there: they are no memory of any rank."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    propagator: Any = ShardingPropagator
    names = ("_propagate_tensor_meta_non_cached", "propagate_op_sharding_non_cached")
    originals = {name: getattr(propagator, name) for name in names if hasattr(propagator, name)}

    def quiet(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with paused():
                return original(*args, **kwargs)

        return run

    for name, original in originals.items():
        setattr(propagator, name, quiet(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(propagator, name, original)


def tensors_of(result: Any) -> Iterator[Tensor]:
    """Tensors in what an operator takes or returned: one, a list, a list of lists, or none."""
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for item in result:
            yield from tensors_of(item)


def plain_parts(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors with a storage that `tensor` consists of: itself, or the parts of a wrapper (DTensor)."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            part = getattr(tensor, name)
            if isinstance(part, Tensor):
                yield from plain_parts(part)
    elif tensor.layout is torch.strided:
        yield tensor
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
