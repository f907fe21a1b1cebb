"""Where a NaN or an infinity appeared first: which module, in its output or in the gradient of its output.

Called for the steps of a comparison of precisions; usable on any module. Waits for the device at every module, so
steps that are timed run without it. Never changes a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import ModuleType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class NonFinite:
    """One sighting. `module` is the dotted name, `where` is `output` or `gradient of the output`, `kind` nan or inf."""

    step: int
    module: str
    where: str
    kind: str


class FiniteWatch:
    """Context manager around training steps; `events` holds the first sighting of each step.

        with FiniteWatch(model) as watch:
            for step in range(1, 11):
                watch.begin_step(step)
                train_step()
        watch.events

    Modules are told in the order in which they finish: the one that is named is the innermost that made the value.
    """

    def __init__(self, model: nn.Module) -> None:
        self.events: list[NonFinite] = []
        self._model = model
        self._step = 0
        self._entered = ExitStack()

    def begin_step(self, step: int) -> None:
        """What is seen from now on belongs to `step`."""
        self._step = step

    def __enter__(self) -> FiniteWatch:
        for name, module in self._model.named_modules():
            handle = module.register_forward_hook(partial(self._look, name or type(module).__name__))
            self._entered.callback(handle.remove)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.close()

    def _look(self, name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        for tensor in tensors_in(output):
            if not (tensor.is_floating_point() or tensor.is_complex()):
                continue
            self._note(name, "output", tensor)
            if tensor.requires_grad:
                tensor.register_hook(partial(self._note_gradient, name))

    def _note_gradient(self, name: str, gradient: Tensor) -> None:
        self._note(name, "gradient of the output", gradient)

    def _note(self, name: str, where: str, tensor: Tensor) -> None:
        if self.events and self.events[-1].step == self._step:
            return
        tensor = tensor.detach()
        if not bool(torch.isfinite(tensor).all()):
            kind = "nan" if bool(torch.isnan(tensor).any()) else "inf"
            self.events.append(NonFinite(self._step, name, where, kind))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Tensors in what a module returned: one, a tuple or list, a mapping, or an object that holds such in attributes
    (a dataclass, a namespace, one with slots), also one inside another. A module that is returned is no value."""
    yield from _tensors_in(value, set())


def _tensors_in(value: Any, seen: set[int]) -> Iterator[Tensor]:
    # An object of the user's own may lead back to itself.
    if value is None or isinstance(value, (str, int, float)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
        return
    for part in _parts_of(value):
        yield from _tensors_in(part, seen)


def _parts_of(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (tuple, list, set, frozenset)):
        return list(value)
    if isinstance(value, (nn.Module, type, ModuleType)) or callable(value):
        return []
    slots = [getattr(value, name, None) for kind in type(value).__mro__ for name in _slots_of(kind)]
    return [*getattr(value, "__dict__", {}).values(), *slots]


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
