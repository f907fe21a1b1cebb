"""A compiled step on fake tensors: Dynamo's real graphs, the partitioner's real choice of what backward keeps.

Entered by `trace` where the run compiles. The model is compiled as `worker.build` does it, with a backend that takes
torch's way up to the kernels: Inductor's decompositions, its passes over the joint graph, the min-cut partition that
decides what is saved and what is computed again. Kernels are not made; `fusion` says what they would hold.
Frames that Dynamo does not take run as they are, as in a real run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import Node

from pilotkit.estimate.events import NO_BLOCK, Operator
from pilotkit.estimate.fusion import Group, Plan, plan_of
from pilotkit.estimate.recorder import Recorder
from pilotkit.train.compilation import compile_model

MODULES = ("nn_module_stack", "fwd_nn_module_stack")
"""Where a node of a graph holds the modules it comes from: its own, or in backward those of its forward."""


@contextmanager
def compiled(
    recorder: Recorder,
    model: nn.Module,
    *,
    scope: str,
    blocks: nn.ModuleList | None,
    fuses: bool,
    follows_blocks: bool,
) -> Iterator[None]:
    """Inside, `model` runs as torch.compile's graphs. `follows_blocks`: its graphs tell which block is at work, where
    no hook of a block can (it would cut the graph in two).

    What was compiled in this process before is forgotten, before and afterwards: torch keeps eight versions of a
    forward and runs the ninth uncompiled.
    """
    path = next((name for name, module in model.named_modules() if module is blocks), None)
    block_of = partial(_block_of, f"L['self'].{path}.") if follows_blocks and path is not None else None
    make = partial(_make, recorder, block_of, fuses)
    torch._dynamo.reset()
    torch._dynamo.utils.counters["graph_break"].clear()
    compile_model(model, scope=scope, blocks=blocks, backend=partial(_backend, recorder, make, fuses))
    if scope == "model":
        whole: Any = model
        whole._compiled_call_impl = partial(_call, recorder, whole._compiled_call_impl)
    try:
        yield
        if not recorder.trace.num_graphs:
            recorder.trace.not_compiled = "Dynamo takes no part of its forward"
        recorder.trace.graph_breaks = sorted(_first_line(text) for text in torch._dynamo.utils.counters["graph_break"])
    finally:
        torch._dynamo.reset()


def _call(recorder: Recorder, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Says that the model is at work, as hooks do for one that is not compiled: they would be part of its graph."""
    recorder.in_model = True
    try:
        return call(*args, **kwargs)
    finally:
        recorder.in_model = False


def _backend(recorder: Recorder, make: Callable[..., Any], fuses: bool, graph: fx.GraphModule, inputs: Any) -> Any:
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._guards import detect_fake_mode
    from torch._inductor.compile_fx import partition_fn
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.virtualized import V

    recorder.trace.num_graphs += torch.is_grad_enabled()
    # Without fusion it is torch's own backend `aot_eager_decomp_partition`, which a processor can really run.
    split = partition_fn if fuses else partial(min_cut_rematerialization_partition, compiler="inductor")
    # Dropout becomes a seed that backward draws from again, in a pass that asks for the fake mode.
    with config.patch({"unlift_effect_tokens": True}), V.set_fake_mode(detect_fake_mode(inputs)):
        return aot_autograd(fw_compiler=make, decompositions=select_decomp_table, partition_fn=split)(graph, inputs)


def _make(
    recorder: Recorder,
    block_of: Callable[[Node], int | None] | None,
    fuses: bool,
    graph: fx.GraphModule,
    _inputs: Any,
) -> Any:
    plan = plan_of(graph.graph) if fuses else Plan()

    def run(args: list[Any]) -> Any:
        # A new one each time: it holds its results until it is gone.
        return _Program(graph, recorder=recorder, block_of=block_of, plan=plan).boxed_run(args)

    run._boxed_call = True  # type: ignore[attr-defined]  # torch's sign that the list may be emptied
    return run


class _Program(fx.Interpreter):
    """Runs one graph operator by operator, under the recorder. What fusion keeps in registers is no memory."""

    def __init__(
        self,
        graph: fx.GraphModule,
        *,
        recorder: Recorder,
        block_of: Callable[[Node], int | None] | None,
        plan: Plan,
    ) -> None:
        super().__init__(graph)
        self._recorder = recorder
        self._block_of = block_of
        self._plan = plan
        if plan.frees is not None:
            self.user_to_last_uses = plan.frees

    def run_node(self, node: Node) -> Any:
        recorder, plan = self._recorder, self._plan
        if self._block_of is not None and node.op == "call_function":
            block = self._block_of(node)
            if block is not None:  # a node that knows no module (sums of gradients) belongs to the one before it
                recorder.block = block
        if node in plan.hidden:
            with recorder.paused():
                result = super().run_node(node)
        elif node in plan.members:
            counts, recorder.counts_operators = recorder.counts_operators, False
            result = super().run_node(node)
            recorder.counts_operators = counts
        else:
            result = super().run_node(node)
        group = plan.last.get(node)
        if group is not None and recorder.counts_operators:
            recorder.trace.operators.append(self._operator(group))
        if node.op == "output":
            recorder.block = NO_BLOCK if self._block_of is not None else recorder.block
        return result

    def _operator(self, group: Group) -> Operator:
        recorder = self._recorder
        return Operator("fused", "elementwise", 0.0, group.num_bytes, group.dtype, recorder.moment, recorder.block)


def _block_of(prefix: str, node: Node) -> int | None:
    """The block that a node stands in, NO_BLOCK outside of all; None where torch does not know its module."""
    for name in MODULES:
        stack = node.meta.get(name)
        if stack:
            paths = [str(entry[0]) for entry in stack.values()]
            inside = next((path for path in paths if path.startswith(prefix)), None)
            return int(inside.removeprefix(prefix).partition(".")[0]) if inside is not None else NO_BLOCK
    return None


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0]
