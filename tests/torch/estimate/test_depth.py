"""A deep model from short traces: the peaks are those of its own whole trace."""

from __future__ import annotations

import dataclasses
from functools import partial
from types import ModuleType

import pytest

from pilotkit.estimate.allocator import replay
from pilotkit.estimate.memory import peaks
from pilotkit.estimate.predict import Estimator, requests
from pilotkit.estimate.trace import trace_step


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="one device"),
        pytest.param({"activation_checkpointing": "full", "grad_accum_steps": 2}, id="recomputation"),
        pytest.param({"strategy": "fsdp", "dp_shard": 8}, id="fsdp"),
        pytest.param({"strategy": "fsdp", "dp_shard": 8, "device_type": "cuda"}, id="fsdp, accelerator kernels"),
        pytest.param({"strategy": "ddp", "dp_replicate": 4}, id="ddp"),
    ],
)
def test_seven_blocks_from_three(changes: dict[str, object], scenarios: ModuleType) -> None:
    workload = dataclasses.replace(scenarios.LLAMA, build_model=partial(scenarios.build_llama, num_layers=7), **changes)
    estimator = Estimator(workload)
    deep = estimator.trace(micro_batch_size=2, seq_len=64)
    assert estimator.is_expanded, "fell back to the whole depth"
    whole = trace_step(workload, micro_batch_size=2, seq_len=64, counts_operators=True)
    assert {name: peak.num_bytes for name, peak in peaks(deep).items()} == {
        name: peak.num_bytes for name, peak in peaks(whole).items()
    }
    assert len(deep.events) == len(whole.events)
    assert sum(operator.num_flops for operator in deep.operators) == sum(op.num_flops for op in whole.operators)
    assert len(deep.collectives) == len(whole.collectives)
    for expandable in (False, True):
        replayed, real = (replay(requests(trace), expandable=expandable) for trace in (deep, whole))
        assert replayed.peak_allocated_bytes == real.peak_allocated_bytes
        assert replayed.peak_reserved_bytes == pytest.approx(real.peak_reserved_bytes, rel=0.02)


def test_blocks_that_differ_are_traced_in_full(scenarios: ModuleType) -> None:
    """Two of seven blocks are frozen: no run of blocks repeats."""
    build = partial(scenarios.build_gpt, num_layers=7, frozen=True)
    estimator = Estimator(dataclasses.replace(scenarios.GPT, build_model=build))
    assert not estimator.is_expanded
    whole = trace_step(estimator.workload, micro_batch_size=2, seq_len=32)
    assert peaks(estimator.trace(micro_batch_size=2, seq_len=32)) == peaks(whole)
