"""What the allocator gave out, of a compiled step too; and that looking at its operators does not uncompile it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pilotkit.meter import CompileWatch, DtypeWatch, LiveTensorTracker, MemoryBreakdown, count_executed_flops
from pilotkit.meter.allocations import peak_growth, peak_of

WIDTH, ROWS, FLOAT = 64, 512, 4
ACTIVATION = ROWS * WIDTH * FLOAT


def test_frees_of_what_was_there_before_are_no_growth() -> None:
    kept = torch.ones(1000)
    held = [torch.ones(1000)]

    def work() -> Tensor:
        first = torch.ones(2000)
        del first
        held.clear()
        return kept + 1

    assert peak_growth(work) == 2000 * FLOAT


def test_an_address_that_is_used_again_counts_once_at_a_time() -> None:
    events = [(3, 7, -10), (1, 7, 10), (2, 8, 5), (4, 7, 30), (5, 9, -100)]
    assert peak_of(events) == 35


class Elementwise(nn.Module):
    """Compiled, less is kept for backward than step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.scale
        for _ in range(6):
            y = y.sin()
        return y.mean()


@pytest.fixture
def training() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    torch._dynamo.reset()
    model = Elementwise()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.ones(ROWS, WIDTH)

    def step() -> None:
        model(inputs).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


Training = tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]


def test_uncompiled_both_ways_of_counting_agree_to_the_byte(training: Training) -> None:
    model, optimizer, step = training
    step()
    tracker = LiveTensorTracker()
    tracker.track(model, optimizer)
    before = tracker.live_bytes
    with tracker:
        step()
    assert tracker.peak_bytes == before + peak_growth(step)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_a_compiled_step_takes_what_its_code_takes_before_and_after_it_was_looked_into(training: Training) -> None:
    model, optimizer, step = training
    step()
    uncompiled = peak_growth(step)
    assert uncompiled > 6 * ACTIVATION
    model.compile(backend="aot_eager_decomp_partition")  # what is kept for backward is chosen as by Inductor
    step()
    step()
    compiled = peak_growth(step)
    assert compiled < uncompiled - ACTIVATION // 2
    with CompileWatch() as again:
        with MemoryBreakdown(model, optimizer) as breakdown:
            step()
        with DtypeWatch(model):
            step()
        count_executed_flops(step)
        assert peak_growth(step) == compiled
    assert again.compilations == []
    held = sum(breakdown.result().kinds[kind] for kind in ("parameters", "optimizer_state"))
    assert breakdown.result().peak_bytes == held + uncompiled, "no operator of compiled code is seen: it ran uncompiled"
    torch._dynamo.reset()
