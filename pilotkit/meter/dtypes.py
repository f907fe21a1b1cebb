"""The number formats that a step really used, as opposed to those that were asked for.

Called for one step of a comparison or a pilot; usable around any step. Sees each matrix product by its operator, so a
module that leaves autocast shows. Slows operators down: no timed step runs under it. Never changes a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pilotkit.meter.finite import tensors_in
from pilotkit.meter.uncompiled import uncompiled

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "convolution", "convolution_backward")
REDUCTIONS = ("allreduce_", "_reduce_scatter_base_", "reduce_scatter_", "_allgather_base_", "allgather_")


@dataclass
class DtypeTable:
    """Dtypes by name. `parameters`, `gradients` and `buffers` count elements, `products` matrix products.

    `modules` names, for each dtype, the modules in whose forward a product was taken in it; `collectives` counts the
    tensors that were communicated, by collective and dtype; `output` lists what the whole model returned.
    """

    parameters: dict[str, int] = field(default_factory=dict)
    gradients: dict[str, int] = field(default_factory=dict)
    buffers: dict[str, int] = field(default_factory=dict)
    products: dict[str, int] = field(default_factory=dict)
    modules: dict[str, list[str]] = field(default_factory=dict)
    collectives: dict[str, dict[str, int]] = field(default_factory=dict)
    output: list[str] = field(default_factory=list)

    def leaks(self, *compute_dtypes: str) -> list[str]:
        """Modules that took matrix products in another dtype than these (`float32`, `bfloat16`, ...)."""
        return sorted({name for dtype, names in self.modules.items() if dtype not in compute_dtypes for name in names})


class DtypeWatch:
    """Context manager around one step of `model`; read `table` afterwards. Sharded parameters count whole."""

    def __init__(self, model: nn.Module) -> None:
        self.table = DtypeTable()
        self._model = model
        self._stack: list[str] = []
        self._entered = ExitStack()

    def __enter__(self) -> DtypeWatch:
        with ExitStack() as stack:
            for name, module in self._model.named_modules():
                path = name or type(module).__name__
                stack.callback(module.register_forward_pre_hook(partial(self._enter_module, path)).remove)
                hook = module.register_forward_hook(self._leave_module, always_call=True)
                stack.callback(hook.remove)
            for parameter in self._model.parameters():
                if parameter.requires_grad:
                    stack.callback(parameter.register_post_accumulate_grad_hook(self._see_gradient).remove)
            stack.enter_context(uncompiled())
            stack.enter_context(_Watch(self))
            self._entered = stack.pop_all()
        self.table.parameters = _elements(self._model.parameters())
        self.table.buffers = _elements(self._model.buffers())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.close()

    def _enter_module(self, name: str, _module: nn.Module, _inputs: Any) -> None:
        self._stack.append(name)

    def _leave_module(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()
        if not self._stack:
            # In the forward and not before it: a wrapper may cast buffers only when it first runs.
            self.table.buffers = _elements(self._model.buffers())
            found = {name_of(tensor.dtype) for tensor in tensors_in(output) if tensor.is_floating_point()}
            self.table.output = sorted({*self.table.output, *found})

    def _see_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            name = name_of(parameter.grad.dtype)
            self.table.gradients[name] = self.table.gradients.get(name, 0) + parameter.grad.numel()

    def see_operator(self, namespace: str, operator: str, args: tuple[Any, ...]) -> None:
        """Told of every operator by the dispatch mode."""
        if namespace == "c10d" and operator in REDUCTIONS:
            counts = self.table.collectives.setdefault(operator.strip("_").replace("_base", ""), {})
            for tensor in tensors_in(list(args)):
                counts[name_of(tensor.dtype)] = counts.get(name_of(tensor.dtype), 0) + 1
        elif namespace == "aten" and (operator in PRODUCTS or operator.startswith("_scaled_dot_product")):
            first = next((tensor for tensor in tensors_in(list(args)) if tensor.is_floating_point()), None)
            if first is not None:
                self._see_product(name_of(first.dtype))

    def _see_product(self, dtype: str) -> None:
        self.table.products[dtype] = self.table.products.get(dtype, 0) + 1
        names = self.table.modules.setdefault(dtype, [])
        if self._stack and self._stack[-1] not in names:
            names.append(self._stack[-1])


class _Watch(TorchDispatchMode):
    """Tells the watch of every operator. A base class because torch asks for one."""

    def __init__(self, watch: DtypeWatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's class has no types
        self._watch = watch

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a wrapper (DTensor) first turns into operators on the tensors inside it
        self._watch.see_operator(func.namespace, func._opname, args)
        return func(*args, **(kwargs or {}))


def name_of(dtype: torch.dtype) -> str:
    """`torch.bfloat16` -> `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def _elements(tensors: Any) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts[name_of(tensor.dtype)] += tensor.numel()
    return dict(counts)
