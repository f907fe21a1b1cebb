"""What real users met, as trials of the estimate; the byte counts are worked out by hand."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from pilotkit.errors import ConfigError
from pilotkit.estimate.grid import fit
from pilotkit.estimate.memory import peaks, static_bytes
from pilotkit.estimate.predict import Estimator, predict
from pilotkit.estimate.problems import EstimateError
from pilotkit.estimate.trace import trace_step
from pilotkit.estimate.workload import ADAMW, Workload
from pilotkit.train.models import llama
from pilotkit.train.models.language import LanguageModelOutput, next_token_loss
from pilotkit.units import GIB


def _num_params(workload: Workload, *, trainable: bool = False) -> int:
    return sum(p.numel() for p in workload.build_model().parameters() if p.requires_grad or not trainable)


@pytest.mark.parametrize(
    ("name", "copies"),
    [("gpt", 2), ("gpt amsgrad", 3), ("gpt sgd", 0), ("gpt sgd momentum", 1), ("gpt partly frozen", 2)],
)
def test_optimizer_state_is_so_many_tensors_a_trainable_parameter(
    name: str, copies: int, scenarios: ModuleType
) -> None:
    """AdamW in float32: 4P of weights and 8P of state stay; Adam's step counters are 4 bytes a parameter tensor."""
    workload = scenarios.SINGLE[name]
    found = static_bytes(trace_step(workload, micro_batch_size=2, seq_len=16))
    counters = sum(p.requires_grad for p in workload.build_model().parameters()) if copies > 1 else 0
    expected = 4 * copies * _num_params(workload, trainable=True) + 4 * counters
    assert found.get("optimizer_state", 0) == expected
    assert found["parameters"] == 4 * _num_params(workload)


def test_the_second_step_holds_the_state_that_the_first_one_made(scenarios: ModuleType) -> None:
    found = predict(scenarios.GPT, micro_batch_size=4, seq_len=64)
    state = found.static["optimizer_state"]
    assert found.peaks["steady step"].num_bytes - found.peaks["first step"].num_bytes == state
    assert found.peak_allocated_bytes == found.peaks["steady step"].num_bytes


def test_foreach_holds_temporaries_that_fused_does_not(scenarios: ModuleType) -> None:
    """The foreach implementation makes one more tensor a parameter in the optimizer's part of the step."""
    tops = {}
    for implementation in ("foreach", "fused"):
        workload = dataclasses.replace(
            scenarios.GPT, optimizer={**ADAMW, "implementation": implementation}, device_type="cuda"
        )
        trace = trace_step(workload, micro_batch_size=1, seq_len=8)
        tops[implementation] = max(
            live for event, live in trace.live() if event.step == 1 and event.moment == "optimizer"
        )
    assert tops["foreach"] - tops["fused"] == pytest.approx(4 * _num_params(scenarios.GPT), rel=0.02)


def test_8_bits_of_state_and_two_copies_of_a_parameter_at_work(scenarios: ModuleType) -> None:
    """1 byte an element of each moment, 4 for each 256 of them and for each of the 256 values of its table. The
    compiled update of an accelerator makes a float32 copy of both, of one parameter at a time."""
    size = 512 * 512
    workload = Workload(
        partial(_Linears, 1, 512),
        lambda _: {"x": torch.empty(512)},
        optimizer=scenarios.optimizer("adamw8bit", "compiled"),
        device_type="cuda",
        max_grad_norm=None,
    )
    found = predict(workload, micro_batch_size=1, seq_len=1)
    assert found.static == {"parameters": 4 * size, "optimizer_state": 4 + 2 * (size + 4 * size // 256 + 4 * 256)}
    top = max(live for event, live in found.trace.live() if event.step == 1 and event.moment == "optimizer")
    gradients, copies = 4 * size, 2 * (4 * size + 4 * size // 256)
    # The row of 512 numbers is there too, and a few scalars.
    assert top == pytest.approx(sum(found.static.values()) + gradients + copies + 4 * 512, abs=64)
    assert any("adamw8bit is modelled" in note for note in found.notes)


class _Linears(nn.Module):
    """So many square layers in a row."""

    def __init__(self, num_layers: int, size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(num_layers))

    def forward(self, x: Tensor) -> LanguageModelOutput:
        for layer in self.layers:
            x = layer(x)
        return LanguageModelOutput(x.sum(), x)


class _Head(nn.Module):
    """A tiny model with a large vocabulary; the loss is in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128256, 8)
        self.head = nn.Linear(8, 128256, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> LanguageModelOutput:
        logits = self.head(self.embedding(input_ids))
        return LanguageModelOutput(next_token_loss(logits, labels), logits)


def test_logits_are_there_in_both_formats(scenarios: ModuleType) -> None:
    """4 x 4096 x 128256: 3.91 GiB in bfloat16, 7.83 GiB in float32, and as much again for the gradient."""
    workload = Workload(_Head, scenarios.text_row, precision=scenarios.BF16)
    trace = trace_step(workload, micro_batch_size=4, seq_len=4096)
    sizes = [event.num_bytes for event in trace.events if event.step == 1 and event.num_bytes > GIB]
    assert round(4 * 4096 * 128256 * 2 / GIB, 2) == 3.91
    assert 4 * 4096 * 128256 * 2 in sizes
    assert sizes.count(4 * 4096 * 128256 * 4) >= 2
    assert peaks(trace)["steady step"].num_bytes > 2 * 7.82 * GIB + 3.9 * GIB


def test_logits_are_never_whole_where_the_loss_is_computed_in_chunks(scenarios: ModuleType) -> None:
    """8 chunks: 0.98 GiB of float32 logits at a time, where 7.83 GiB were."""
    whole, chunked = (
        trace_step(
            Workload(partial(_tiny_llama, loss_chunks=count), scenarios.text_row, precision=scenarios.BF16),
            micro_batch_size=4,
            seq_len=4096,
        )
        for count in (1, 8)
    )
    logits = 4 * 4096 * 128256 * 4
    assert max(event.num_bytes for event in whole.events) == logits
    assert max(event.num_bytes for event in chunked.events) == logits // 8
    assert peaks(whole)["steady step"].num_bytes > 2 * logits
    # A chunk in bfloat16, in float32 and its gradient, beside activations of a model that is 8 wide.
    assert peaks(chunked)["steady step"].num_bytes < 4 * logits // 8


def _tiny_llama(*, loss_chunks: int) -> nn.Module:
    sizes = {"vocab_size": 128256, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "hidden_size": 8, "ffn_size": 8}
    return llama.build(**sizes, max_seq_len=4096, rope_theta=1e4, loss_chunks=loss_chunks)


def test_experts_compute_what_their_rows_need(scenarios: ModuleType) -> None:
    """Two of four experts a token; a layer has 32 x 96 and 48 x 32 weights an expert, and backward is twice forward."""
    workload = dataclasses.replace(scenarios.MIXTRAL, precision=scenarios.BF16, device_type="cuda")
    trace = trace_step(workload, micro_batch_size=2, seq_len=64, counts_operators=True)
    found = [operator for operator in trace.operators if operator.name == "aten::_grouped_mm"]
    assert {operator.kind for operator in found} == {"matmul"}
    rows, num_layers = 2 * 64 * 2, 2
    assert sum(operator.num_flops for operator in found) == 3 * num_layers * 2 * rows * (32 * 96 + 48 * 32)


@pytest.mark.parametrize(
    ("reduces_each", "kept", "words"),
    [
        (True, 500_000_000, "every rank keeps its share of the gradients: they are reduced in each of them"),
        (False, 4_000_000_000, "every rank keeps whole gradients: they are reduced in the last one only"),
    ],
)
def test_gradients_between_micro_batches_of_a_billion_parameters_on_8(
    reduces_each: bool, kept: int, words: str, scenarios: ModuleType
) -> None:
    """4 bytes a parameter: 0.5 GB on a rank where each micro-batch is reduced, 4 GB where that is skipped."""
    workload = scenarios.spread(
        Workload(partial(_Linears, 10, 10_000), lambda _: {"x": torch.empty(10_000)}),
        "fsdp",
        8,
        grad_accum_steps=4,
        sync_each_micro_batch=reduces_each,
    )
    found = predict(workload, micro_batch_size=1, seq_len=1)
    live, between = 0, 0
    for event in found.trace.events:
        live += event.num_bytes if found.trace.kind_of(event.tensor) == "gradients" else 0
        if event.step == 1 and event.moment == "data":
            between = max(between, live)
    assert between == kept
    assert any(words in note for note in found.notes)


def test_gradients_stay_whole_between_micro_batches_under_fsdp(scenarios: ModuleType) -> None:
    """pilotkit reduces in the last micro-batch only: from the first on, 4 bytes a parameter stay on each of 8 ranks."""
    spread = scenarios.spread(scenarios.LLAMA, "fsdp", 8)
    once, often = (dataclasses.replace(spread, grad_accum_steps=steps) for steps in (1, 4))
    whole = 4 * _num_params(scenarios.LLAMA)
    kept = {}
    for workload in (once, often):
        trace = trace_step(workload, micro_batch_size=1, seq_len=8)
        between = max(live for event, live in trace.live() if event.step == 1 and event.moment == "data")
        kept[workload.grad_accum_steps] = between - sum(static_bytes(trace).values())
    assert kept[4] >= whole
    assert kept[1] < whole / 8
    notes = predict(often, micro_batch_size=1, seq_len=8).notes
    assert "between micro-batches every rank keeps whole gradients: they are reduced in the last one only" in notes


def test_checkpointing_saves_memory_and_needs_blocks(scenarios: ModuleType) -> None:
    full, none = (
        predict(
            dataclasses.replace(scenarios.LLAMA, activation_checkpointing=mode), micro_batch_size=8, seq_len=64
        ).peak_allocated_bytes
        for mode in ("full", "none")
    )
    assert full < none
    with pytest.raises(ConfigError, match="activation_checkpointing"):
        predict(Workload(_Head, scenarios.text_row, activation_checkpointing="full"), micro_batch_size=1, seq_len=8)


class _Branches(_Head):
    def forward(self, input_ids: Tensor, labels: Tensor) -> LanguageModelOutput:
        if self.head.weight.sum() > 0:
            input_ids = input_ids + 1
        return super().forward(input_ids, labels)


class _Selects(_Head):
    def forward(self, input_ids: Tensor, labels: Tensor) -> LanguageModelOutput:
        return super().forward(input_ids[input_ids > 0][None], labels)


def _on_cuda() -> nn.Module:
    return nn.Linear(2, 2, device="cuda")


def _reads_a_file() -> nn.Module:
    with open("/nowhere/weights.json", encoding="utf-8") as stream:
        return nn.Linear(2, json.load(stream)["width"])


@pytest.mark.parametrize(
    ("build", "words"),
    [
        pytest.param(_Branches, "needs the values of tensors", id="branch on a value"),
        pytest.param(_Selects, "needs the values of tensors", id="shape from a value"),
        pytest.param(_on_cuda, "allocates on an accelerator", id="allocates on cuda"),
        pytest.param(_reads_a_file, "/nowhere/weights.json", id="file that is not there"),
    ],
)
def test_what_cannot_be_traced_says_what_to_do(build: type, words: str, scenarios: ModuleType) -> None:
    with pytest.raises(EstimateError, match=words):
        predict(Workload(build, scenarios.text_row), micro_batch_size=2, seq_len=8)


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_a_grid_has_the_peaks_of_direct_traces(device_type: str, scenarios: ModuleType) -> None:
    """On `cuda` under autocast, whose memory of cast weights is cleared in an order of chance, and a loss in chunks."""
    workload = dataclasses.replace(
        scenarios.LLAMA, build_model=partial(scenarios.build_llama, num_layers=6), device_type=device_type
    )
    if device_type == "cuda":
        build = partial(scenarios.build_llama, num_layers=6, loss_chunks=4)
        workload = dataclasses.replace(workload, build_model=build, precision=scenarios.BF16_MIXED)
    grid = fit(Estimator(workload))
    for micro_batch_size, seq_len in ((1, 192), (4, 96), (7, 512)):
        direct = predict(workload, micro_batch_size=micro_batch_size, seq_len=seq_len)
        fitted = grid.peak_allocated_bytes([micro_batch_size], [seq_len])[0]
        assert fitted == direct.peak_allocated_bytes
        reserved = grid.peak_reserved_bytes(micro_batch_size=micro_batch_size, seq_len=seq_len, expandable=True)
        assert reserved == direct.expandable.peak_reserved_bytes
    limit = grid.peak_allocated_bytes([5], [64])[0]
    assert grid.largest_micro_batch(64, limit_bytes=limit) == 5
