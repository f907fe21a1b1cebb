"""What the peak of a step consists of: by kind (parameters, gradients, ...) and by module; the parts add up to it.

Called for one step of a measurement; usable around any step, on any device type. Rests on `LiveTensorTracker`, so what
that one does not see (scratch memory inside a kernel, the allocator's rounding) is in no part. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from pilotkit.meter.memory import LiveTensorTracker, plain_tensors

KINDS = ("parameters", "gradients", "optimizer_state", "activations", "buffers", "temporaries")
OUTSIDE = "(outside modules)"


@dataclass
class _Piece:
    """One storage from its first sight to its end. `kind` may become known later than the storage."""

    module: str
    kind: str = "temporaries"
    size: int = 0


@dataclass(frozen=True)
class Breakdown:
    """Bytes at the peak. `kinds` has every one of KINDS; `modules` maps a dotted name to its bytes by kind."""

    peak_bytes: int
    kinds: dict[str, int]
    modules: dict[str, dict[str, int]] = field(default_factory=dict)


class MemoryBreakdown:
    """Context manager around one whole step: forward, backward, optimizer.

        with MemoryBreakdown(model, optimizer, depth=2) as watch:
            one_step()
        watch.result().kinds["activations"]

    A tensor made inside a module is an activation when it outlives the outermost forward in which it was made: that
    is what backward holds (also after recomputation), with the model's outputs. Everything else that is no parameter,
    gradient, buffer or optimizer state is temporary. A module is named by the first `depth` parts of its path.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, depth: int = 2, device_type: str = "cpu"
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._depth = depth
        self._tracker = LiveTensorTracker(device_type=device_type, told=self._changed)
        self._pieces: dict[int, _Piece] = {}
        self._changes: list[tuple[_Piece, int]] = []
        self._stack: list[str] = []
        self._made_inside: list[_Piece] = []
        self._owners = {id(parameter): self._owner(name) for name, parameter in model.named_parameters()}
        self._entered = ExitStack()

    def __enter__(self) -> MemoryBreakdown:
        self._tracker.track(self._model, self._optimizer)
        for name, parameter in self._model.named_parameters():
            self._mark(parameter, kind="parameters", module=self._owner(name))
            self._mark_gradient(parameter)
        for name, buffer in self._model.named_buffers():
            self._mark(buffer, kind="buffers", module=self._owner(name))
        self._mark_optimizer_state()
        with ExitStack() as stack:
            for name, module in self._model.named_modules():
                path = self._short(name) or type(module).__name__
                stack.callback(module.register_forward_pre_hook(partial(self._enter_module, path)).remove)
                stack.callback(module.register_forward_hook(self._leave_module, always_call=True).remove)
            for parameter in self._model.parameters():
                if parameter.requires_grad:
                    stack.callback(parameter.register_post_accumulate_grad_hook(self._mark_gradient).remove)
            stack.enter_context(self._tracker)
            self._entered = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.close()
        self._mark_optimizer_state()

    def result(self) -> Breakdown:
        """The composition of the peak. Kinds are known only when the step is over: call it after the context."""
        end = self._find_peak()
        live: dict[int, tuple[_Piece, int]] = {}
        for piece, size in self._changes[:end]:
            live[id(piece)] = (piece, size)
        kinds = dict.fromkeys(KINDS, 0)
        modules: dict[str, dict[str, int]] = {}
        for piece, size in live.values():
            if size:
                kinds[piece.kind] += size
                by_kind = modules.setdefault(piece.module, {})
                by_kind[piece.kind] = by_kind.get(piece.kind, 0) + size
        return Breakdown(sum(kinds.values()), kinds, modules)

    def _find_peak(self) -> int:
        """How many changes lead up to the peak. Sizes are absolute, so the last one of a piece counts."""
        sizes: dict[int, int] = {}
        total = peak = end = 0
        for number, (piece, size) in enumerate(self._changes, 1):
            total += size - sizes.get(id(piece), 0)
            sizes[id(piece)] = size
            if total > peak:
                peak, end = total, number
        return end

    def _changed(self, key: int, size: int) -> None:
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = _Piece(self._stack[-1] if self._stack else OUTSIDE)
            if self._stack:
                self._made_inside.append(piece)
        piece.size = size
        self._changes.append((piece, size))
        if size == 0:
            # A freed address is used again. FSDP empties a storage that lives on: its next size is a new piece.
            del self._pieces[key]

    def _enter_module(self, path: str, _module: nn.Module, _inputs: Any) -> None:
        self._stack.append(path)

    def _leave_module(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._stack:
            self._stack.pop()
        if self._stack:
            return
        for piece in self._made_inside:
            if piece.size and piece.kind == "temporaries":
                piece.kind = "activations"
        self._made_inside.clear()

    def _mark_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self._mark(parameter.grad, kind="gradients", module=self._owners[id(parameter)])

    def _mark_optimizer_state(self) -> None:
        for parameter, state in self._optimizer.state.items():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, Tensor):
                    self._mark(value, kind="optimizer_state", module=self._owners.get(id(parameter), OUTSIDE))

    def _mark(self, tensor: Tensor, *, kind: str, module: str) -> None:
        for piece in self._pieces_of(tensor):
            piece.kind, piece.module = kind, module

    def _pieces_of(self, tensor: Tensor) -> Iterator[_Piece]:
        for part in plain_tensors(tensor):
            piece = self._pieces.get(part.untyped_storage()._cdata)
            if piece is not None:
                yield piece

    def _owner(self, name: str) -> str:
        """The module that a parameter or buffer of this dotted name belongs to."""
        return self._short(name.rpartition(".")[0]) or type(self._model).__name__

    def _short(self, path: str) -> str:
        return ".".join(path.split(".")[: self._depth])
