"""Record every allocation and free of a step that runs on fake tensors. Entered by `trace`, above FakeTensorMode.

Counts like `pilotkit.meter.memory`: a storage once, at its full size, until its last tensor is gone; what FSDP frees
and refills in place is seen through `UntypedStorage.resize_`. Never keeps a tensor alive, and computes nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from pilotkit.estimate.costs import collective_of, operator_of
from pilotkit.estimate.events import NO_BLOCK, Event, Trace
from pilotkit.estimate.kernels import run_fake
from pilotkit.estimate.watching import CompilingWatch, Watch, plain_parts, quiet_propagation, tensors_of, watch_streams
from pilotkit.meter.memory import watch_resize

NO_KERNEL = frozenset({"prim", "profiler"})
FORWARD, BACKWARD = "forward", "backward"


class ReadsAValue(Exception):
    """The model asked for the value of a tensor, which a fake tensor does not have."""

    def __init__(self, moment: str) -> None:
        self.moment = moment
        super().__init__(f"a value of a tensor was read in {moment}")


class Recorder:
    """Context manager that turns what happens inside it into a Trace."""

    def __init__(self, trace: Trace, *, compiles: bool = False) -> None:
        self.trace = trace
        self._watch = CompilingWatch if compiles else Watch
        self.step = 0
        self.moment = "data"
        self.block = NO_BLOCK
        self.block_before = NO_BLOCK
        """Between two blocks, the one that has just ended: it is what its frees come from."""
        self.counts_operators = False
        self.in_model = False
        self._is_open = False
        self.stream = 0
        self._number = 0
        self._sizes: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._owners: dict[int, int] = {}
        """Block of each live storage, by number: a parameter's own, and what was computed from it alone."""
        self._assigned: dict[int, int] = {}
        self._zero_flags: set[int] = set()
        self._entered: list[Any] = []
        self._paused = 0

    def add_initial(self, tensor: Tensor, *, kind: str, block: int = NO_BLOCK) -> None:
        """A tensor that was there before; one storage is counted once."""
        for part in plain_parts(tensor):
            storage = part.untyped_storage()
            if storage._cdata in self._sizes:
                continue
            number = self._remember(storage, block=block)
            self.trace.initial[number] = (kind, storage.nbytes())
            self.trace.initial_blocks[number] = block

    def number_of(self, tensor: Tensor) -> list[int]:
        """Numbers of the live storages that a tensor consists of."""
        keys = [part.untyped_storage()._cdata for part in plain_parts(tensor)]
        return [self._numbers[key] for key in keys if key in self._numbers]

    def block_of(self, tensor: Tensor) -> int:
        """The block that a live tensor belongs to."""
        return next((self._owners[number] for number in self.number_of(tensor)), NO_BLOCK)

    def assign(self, tensor: Tensor, *, kind: str, block: int) -> None:
        """Say what a live tensor turned out to be, and which block it belongs to."""
        for number in self.number_of(tensor):
            self.trace.kinds[number] = kind
            self._owners[number] = self._assigned[number] = block

    def saw_attention(self, kernel: str) -> None:
        """Remember which kernels of attention were taken."""
        self.trace.attention = sorted({*self.trace.attention, kernel})

    def finish(self) -> None:
        """Give the events of assigned tensors their blocks, and frees at one time the order of their tensors: torch
        clears autocast's memory of cast weights by their addresses, which are chance."""
        assigned = (
            event._replace(block=self._assigned[event.tensor]) if event.tensor in self._assigned else event
            for event in self.trace.events
        )
        self.trace.events = [
            event
            for place, run in groupby(assigned, key=_place_of_free)
            for event in (run if place is None else sorted(run, key=attrgetter("tensor")))
        ]

    def __enter__(self) -> Recorder:
        watch = self._watch(self._see_operator)
        self._entered = [watch_resize(self._resized), watch_streams(self), quiet_propagation(self.paused), watch]
        for context in self._entered:
            context.__enter__()
        self._is_open = True
        return self

    def __exit__(self, *error: Any) -> None:
        self._is_open = False  # what dies afterwards, with the model, is no part of a step
        for context in reversed(self._entered):
            context.__exit__(*error)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside is not memory of the device."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def _see_operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return self._scalar(args[0])
        result = run_fake(func, args, kwargs)
        if self._paused or func.namespace in NO_KERNEL:
            return result
        if func is torch.ops.aten._amp_foreach_non_finite_check_and_unscale_.default:
            self._zero_flags.add(args[1].untyped_storage()._cdata)
        name = func._schema.name
        if name.startswith("c10d::") and self.counts_operators:
            found = collective_of(name, args, moment=self.moment, block=self.block)
            self.trace.collectives.extend(found)
        made = self._see_result(result, args, name=name)
        if self.counts_operators:
            operator = operator_of(func, args, kwargs, result, made=made, moment=self.moment, block=self.block)
            if operator is not None:
                self.trace.operators.append(operator)
        if "attention" in name and "backward" not in name:
            self.saw_attention(name.removeprefix("aten::"))
        return result

    def _scalar(self, tensor: Tensor) -> Any:
        """The trainer reads the gradient norm, the loss and step counters, where any finite value will do: 1 makes no
        bias correction zero. The overflow flag of the loss scaler is 0, as no step is skipped. Values that the model
        itself reads would steer what it does next, and are refused."""
        if self.in_model or self.moment == BACKWARD:
            raise ReadsAValue(self.moment)
        value = 0 if tensor.untyped_storage()._cdata in self._zero_flags else 1
        if tensor.dtype is torch.bool:
            return bool(value)
        return float(value) if tensor.dtype.is_floating_point else value

    def _see_result(self, result: Any, args: Any, *, name: str) -> bool:
        """Whether anything was allocated."""
        made = False
        outputs = list(tensors_of(result))
        for index, tensor in enumerate(outputs):
            for part in plain_parts(tensor):
                storage = part.untyped_storage()
                if part.device.type == "cpu" and self._sizes.get(storage._cdata) != storage.nbytes():
                    made = True
                    self._count(storage, name=name, block=self._block_of(args, index, len(outputs)))
        return made

    def _block_of(self, args: Any, index: int, num_outputs: int) -> int:
        """The block at work; in the optimizer, the one that owns the parameter which output `index` was made from.

        Operators on lists give one output an item; one output of a whole list (a stack of norms) belongs to no block.
        """
        if self.moment != "optimizer":
            return self.block
        for value in args:
            if isinstance(value, (list, tuple)):
                if len(value) != num_outputs:
                    return NO_BLOCK
                value = value[index]
            if isinstance(value, Tensor):
                for part in plain_parts(value):
                    number = self._numbers.get(part.untyped_storage()._cdata)
                    if number is not None and self._owners.get(number, NO_BLOCK) != NO_BLOCK:
                        return self._owners[number]
        return NO_BLOCK

    def _count(self, storage: torch.UntypedStorage, *, name: str, block: int) -> None:
        key = storage._cdata
        if key in self._sizes:
            self._release(key)
        number = self._remember(storage, block=block)
        self._event(number, storage.nbytes(), block=block, operator=name)

    def _remember(self, storage: torch.UntypedStorage, *, block: int) -> int:
        key = storage._cdata
        if key not in self._references or self._references[key]() is not storage:
            # torch keeps the Python object of a storage as long as the storage itself, so the reference dies with
            # the memory, and before its address can be used again.
            self._references[key] = weakref.ref(storage, partial(self._forget, key))
        self._number += 1
        self._sizes[key] = storage.nbytes()
        self._numbers[key] = self._number
        self._owners[self._number] = block
        return self._number

    def _release(self, key: int) -> None:
        number, size = self._numbers[key], self._sizes[key]
        owner = self._owners.get(number, NO_BLOCK)
        block = next((found for found in (self.block, self.block_before) if found != NO_BLOCK), owner)
        self._event(number, -size, block=block, operator="free")

    def _event(self, number: int, num_bytes: int, *, block: int, operator: str) -> None:
        if num_bytes and self._is_open:
            if operator == "resize" or operator.startswith(("fsdp::", "c10d::")):
                self.trace.kinds.setdefault(number, "gathered")
            self.trace.events.append(
                Event(number, num_bytes, self.step, self.moment, block, self.stream if num_bytes > 0 else 0, operator)
            )

    def _resized(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self._sizes and not self._paused:
            self._count(storage, name="resize", block=self.block)

    def _forget(self, key: int, _reference: weakref.ref[torch.UntypedStorage]) -> None:
        self._release(key)
        del self._sizes[key], self._numbers[key], self._references[key]


def _place_of_free(event: Event) -> tuple[object, ...] | None:
    """The same for frees that follow each other with nothing between; None for any other event."""
    return (event.step, event.moment, event.block) if event.operator == "free" else None
