"""What each allocation of a trace is for, and which block it belongs to. Called by `trace`; tells the recorder.

Through hooks on blocks and parameters and through the trainer's own sections: the graph stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from pilotkit.estimate.events import NO_BLOCK
from pilotkit.estimate.recorder import Recorder
from pilotkit.estimate.watching import tensors_of

MOMENT_OF_SECTION = {"data_wait": "data", "forward": "forward", "backward": "backward", "optimizer": "optimizer"}


def add_initial(recorder: Recorder, model: nn.Module, blocks: nn.ModuleList | None, *, strategy: str) -> None:
    for index, module in enumerate(blocks or ()):
        for tensor in (*module.parameters(), *module.buffers()):
            recorder.add_initial(tensor.detach(), kind="parameters", block=index)
    for tensor in (*model.parameters(), *model.buffers()):
        recorder.add_initial(tensor.detach(), kind="parameters")
    if strategy != "ddp":
        return
    # One bucket holds about 25 MiB of gradients; together they are as large as all of them (`gradient_as_bucket_view`
    # is off, so the gradients stand beside them).
    owners = {id(param): index for index, block in enumerate(blocks or ()) for param in block.parameters()}
    for number, param in enumerate((param for param in model.parameters() if param.requires_grad), 1):
        block = owners.get(id(param), NO_BLOCK)
        recorder.trace.initial[-number] = ("buckets", param.numel() * param.element_size())
        recorder.trace.initial_blocks[-number] = block


def follow_blocks(
    recorder: Recorder, model: nn.Module, blocks: nn.ModuleList | None, *, only: type | None = None
) -> None:
    """Tell the recorder which block is at work. Tensor hooks in backward: they leave the graph as it is.

    `only`: of a compiled model, the kind of blocks that may have a hook; the model itself has none then.
    """

    def at(index: int, *_: Any) -> None:
        recorder.block = index

    def enter(index: int, _module: nn.Module, args: Any) -> None:
        recorder.block = index
        if index == 0:
            _hook(args, partial(at, NO_BLOCK))

    def follow(index: int, _module: nn.Module, _args: Any, output: Any) -> None:
        _hook(output, partial(at, index))

    def leave(index: int, *_: Any) -> None:
        recorder.block, recorder.block_before = NO_BLOCK, index

    def inside(value: bool, *_: Any) -> None:
        recorder.in_model = value

    for index, block in enumerate(blocks or ()):
        if only is not None and not isinstance(block, only):
            continue
        block.register_forward_pre_hook(partial(enter, index), prepend=True)
        # The first of the hooks on the output, so that in backward it comes before FSDP gathers for this block.
        block.register_forward_hook(partial(follow, index), prepend=True)
        block.register_forward_hook(partial(leave, index))
    if only is not None:
        return
    model.register_forward_pre_hook(partial(inside, True), prepend=True)
    model.register_forward_hook(partial(inside, False), always_call=True)


def _hook(value: Any, function: Any) -> None:
    for tensor in tensors_of(value):
        if tensor.requires_grad:
            tensor.register_hook(function)


class Sections:
    """`train.trainer.Sections`: names the moment, and what the live tensors are at its edges."""

    def __init__(self, recorder: Recorder, model: nn.Module) -> None:
        self._recorder = recorder
        self._model = model

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        recorder = self._recorder
        recorder.moment, recorder.block, recorder.block_before = MOMENT_OF_SECTION[name], NO_BLOCK, NO_BLOCK
        if name in ("forward", "optimizer"):
            self._name_gradients()
        first = len(recorder.trace.events)
        yield
        recorder.block = recorder.block_before = NO_BLOCK
        if name == "forward":
            self._name_activations(first)
        recorder.moment = "data" if name == "optimizer" else recorder.moment

    def _name_gradients(self) -> None:
        """At the start of a forward they are those of earlier micro-batches."""
        grads = [param.grad for param in self._model.parameters()]
        for grad in (*grads, *_whole_gradients(self._model)):
            if grad is not None:
                for number in self._recorder.number_of(grad):
                    self._recorder.trace.kinds[number] = "gradients"

    def _name_activations(self, first: int) -> None:
        """What this forward made and has not freed is kept for backward."""
        trace = self._recorder.trace
        new = trace.events[first:]
        freed = {event.tensor for event in new if event.num_bytes < 0}
        for event in new:
            if event.num_bytes > 0 and event.tensor not in freed and event.operator != "resize":
                trace.kinds.setdefault(event.tensor, "activations")


def _whole_gradients(model: nn.Module) -> Iterator[Tensor | None]:
    """What FSDP keeps of micro-batches that it does not reduce; its own attributes, which torch has no names for."""
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        state: Any = module._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for param in (param for group in groups if group is not None for param in group.fsdp_params):
            yield getattr(param, "unsharded_accumulated_grad", None)
            yield getattr(getattr(param, "_unsharded_param", None), "grad", None)


def name_state(recorder: Recorder, optimizer: torch.optim.Optimizer) -> None:
    for param, state in optimizer.state.items():
        block = recorder.block_of(param)
        for value in state.values():
            if isinstance(value, Tensor):
                recorder.assign(value, kind="optimizer_state", block=block)
