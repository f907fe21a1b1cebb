"""A compiled step: what its graphs keep, to the byte where nothing is fused; what fusion leaves out; what is told."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pilotkit.estimate import compiled
from pilotkit.estimate.fusion import plan_of
from pilotkit.estimate.memory import peaks
from pilotkit.estimate.predict import predict
from pilotkit.estimate.trace import trace_step
from pilotkit.estimate.workload import Workload
from pilotkit.meter import memory
from pilotkit.train.compilation import compile_model
from pilotkit.train.models.language import LanguageModelOutput

BATCH, SEQ_LEN = 4, 32


def _compiles_really(scenarios: ModuleType, monkeypatch: pytest.MonkeyPatch, *, scope: str) -> None:
    """Real runs of the scenarios are compiled by torch's backend without fusion, and the tracker sees its operators."""
    # The tracker of live tensors lets nothing run compiled: torch would not, under it.
    monkeypatch.setattr(memory._Watch, "ignore_compile_internals", classmethod(lambda _: True), raising=False)
    monkeypatch.setattr(memory, "uncompiled", nullcontext)
    parallelize = scenarios.parallelize

    def compiling(model: nn.Module, **options: Any) -> nn.Module:
        found: nn.Module = parallelize(model, **options)
        compile_model(found, scope=scope, blocks=options["blocks"], backend="aot_eager_decomp_partition")
        return found

    monkeypatch.setattr(scenarios, "parallelize", compiling)


@pytest.mark.parametrize("mode", ["none", "selective"])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_blocks_by_themselves_hold_what_torchs_own_backend_really_holds(
    scenarios: ModuleType, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """One graph for all of them, head and loss as they are without; with recomputation too."""
    _compiles_really(scenarios, monkeypatch, scope="blocks")
    uncompiled = dataclasses.replace(scenarios.LLAMA, activation_checkpointing=mode)
    workload = dataclasses.replace(uncompiled, compile=True, compile_scope="blocks")
    real = scenarios.run_for_real(workload)
    trace = trace_step(dataclasses.replace(workload, fuses=False), micro_batch_size=BATCH, seq_len=SEQ_LEN)
    assert trace.num_graphs == 1
    assert [peak.num_bytes for peak in peaks(trace).values()] == list(real.values())
    whole, by_blocks, eager = (
        predict(found, micro_batch_size=BATCH, seq_len=SEQ_LEN).peak_allocated_bytes
        for found in (dataclasses.replace(workload, compile_scope="model"), workload, uncompiled)
    )
    assert whole <= by_blocks <= eager


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_without_fusion_it_is_what_torchs_own_backend_really_holds(
    scenarios: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout's seeds and all: every step and the evaluation. With fusion it is less, in memory and in launches."""
    _compiles_really(scenarios, monkeypatch, scope="model")
    build = partial(scenarios.build_gpt, dropout=0.1, num_layers=1)
    uncompiled = dataclasses.replace(scenarios.GPT, build_model=build)
    workload = dataclasses.replace(uncompiled, compile=True)
    real = scenarios.run_for_real(workload)
    trace = trace_step(dataclasses.replace(workload, fuses=False), micro_batch_size=BATCH, seq_len=SEQ_LEN)
    assert [peak.num_bytes for peak in peaks(trace).values()] == list(real.values())
    fused = predict(workload, micro_batch_size=BATCH, seq_len=SEQ_LEN)
    eager = predict(uncompiled, micro_batch_size=BATCH, seq_len=SEQ_LEN)
    assert fused.peak_allocated_bytes < peaks(trace)["steady step"].num_bytes
    assert fused.peak_allocated_bytes < eager.peak_allocated_bytes
    launches, moved, products = zip(*(_work(found.work) for found in (fused, eager)), strict=True)
    assert launches[0] < launches[1]
    assert moved[0] < moved[1]
    assert products[0] == products[1], "matrix products and attention are computed as before"
    assert fused.to_dict()["details"]["compiled"] == {"how": "modelled", "num_graphs": 1, "graph_breaks": []}
    assert any(note.startswith("torch.compile, 1 graph: modelled, not traced") for note in fused.notes)
    assert "compiled" not in eager.to_dict()["details"]


def _work(work: dict[str, list[dict[str, Any]]]) -> tuple[int, int, float]:
    lines = work["kernels"]
    elementwise = [line for line in lines if line["kind"] == "elementwise"]
    return (
        sum(line["num_kernels"] for line in lines),
        sum(line["num_bytes"] for line in elementwise),
        sum(line["num_flops"] for line in lines),
    )


class _Breaks(nn.Module):
    """Two layers, between which Dynamo has to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> LanguageModelOutput:
        y = self.first(x).relu()
        torch._dynamo.graph_break()
        y = self.second(y)
        return LanguageModelOutput(y.square().mean(), y)


BREAKS = Workload(_Breaks, lambda _: {"x": torch.zeros(8)}, compile=True, num_eval_batches=0)


def test_a_graph_break_is_told_with_the_number_of_graphs() -> None:
    found = predict(BREAKS, micro_batch_size=2, seq_len=1)
    assert found.trace.num_graphs == 2
    (reason,) = found.trace.graph_breaks
    assert f"the graph is cut: {reason}" in found.notes


def test_what_the_compiler_does_not_take_is_estimated_uncompiled_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> Any:
        raise NotImplementedError("no such lowering")

    monkeypatch.setattr(compiled, "plan_of", refuse)
    found = predict(BREAKS, micro_batch_size=2, seq_len=1)
    monkeypatch.undo()
    eager = predict(dataclasses.replace(BREAKS, compile=False), micro_batch_size=2, seq_len=1)
    assert found.peak_allocated_bytes == eager.peak_allocated_bytes
    told = found.to_dict()["details"]["compiled"]
    assert told["how"] == "uncompiled"
    assert "no such lowering" in told["reason"]
    assert any("of the run uncompiled" in note for note in found.notes)


def test_a_fused_kernel_writes_what_others_read_and_nothing_else() -> None:
    """x @ x, then sin, + 1 and a product with itself in one kernel, which a second product reads."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def forward(x: Tensor) -> Tensor:
        y = (x @ x).sin() + 1
        return (y * y) @ x

    graph = make_fx(forward)(torch.zeros(16, 16)).graph
    for node in graph.nodes:
        node.meta["val"] = torch.empty(16, 16)
    plan = plan_of(graph)
    assert sorted(node.name for node in plan.hidden) == ["add", "sin"]
    assert [node.name for node in plan.members] == ["mul"]
    ((last, group),) = plan.last.items()
    assert (last.name, group.num_bytes) == ("mul", 2 * 16 * 16 * 4)
    assert plan.frees is not None
    frees = {node.name: sorted(freed.name for freed in found) for node, found in plan.frees.items()}
    assert frees["mul"] == ["add", "mm", "sin"]
