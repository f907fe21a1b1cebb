"""The checks of the meter on a CUDA or ROCm device: prints PASS or FAIL for each, and exits 1 when one fails.

    python benchmarks/gpu_acceptance.py | tee benchmarks/results/<date>-<device>.txt

Needs one device that nobody else uses, takes about a minute, starts no other process. Without a device it says so and
exits 2: nothing was checked, which is neither a pass nor a failure.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from machine import describe
from torch import Tensor, nn

from pilotkit.device import current_device
from pilotkit.meter import (
    DtypeWatch,
    FiniteWatch,
    LiveTensorTracker,
    MemoryBreakdown,
    StepClock,
    UpdateWatch,
    is_out_of_memory,
)

WIDTH, ROWS, LAYERS, FLOAT = 2048, 8192, 4, 4
Check = tuple[bool, str]


def training() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """Linear layers and AdamW: every size is known in closed form."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    inputs = torch.randn(ROWS, WIDTH, device="cuda")

    def step() -> None:
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return model, optimizer, step


def kinds_in_closed_form() -> Check:
    """Parameters and optimizer state exact to the byte, activations within 1 %."""
    model, optimizer, step = training()
    step()
    with MemoryBreakdown(model, optimizer, device_type="cuda") as watch:
        step()
    kinds = watch.result().kinds
    weights = LAYERS * WIDTH * WIDTH * FLOAT
    # The step counters of AdamW are on the CPU here; the inputs are no activation, the results of all layers are.
    activations = LAYERS * ROWS * WIDTH * FLOAT
    held = kinds["parameters"] == weights and kinds["optimizer_state"] == 2 * weights
    held = held and abs(kinds["activations"] / activations - 1) <= 0.01
    return held, f"{kinds}; expected {weights}, {2 * weights}, {activations}"


def counted_is_allocated() -> Check:
    """Tensors counted operator by operator against the allocator's own peak, within 1 %."""
    model, optimizer, step = training()
    step()
    tracker = LiveTensorTracker(device_type="cuda")
    tracker.track(model, optimizer)
    base = torch.cuda.memory_allocated() - tracker.live_bytes
    torch.cuda.reset_peak_memory_stats()
    with tracker:
        step()
    allocated = torch.cuda.max_memory_allocated() - base
    return abs(tracker.peak_bytes / allocated - 1) <= 0.01, f"counted {tracker.peak_bytes}, allocated {allocated}"


def step_time() -> Check:
    """The clock against CUDA's own events over the same steps, within 1 %; a missing synchronise is far off."""
    _, _, step = training()
    for _ in range(5):
        step()
    device, clock = current_device(), StepClock(current_device().synchronize)
    seen, launched = [], []
    for _ in range(20):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with clock.step():
            begin.record()
            started = time.perf_counter()
            step()
            launched.append(time.perf_counter() - started)
            end.record()
        device.synchronize()
        seen.append(begin.elapsed_time(end) / 1e3)
    told, true = statistics.median(clock.step_seconds), statistics.median(seen)
    alone = statistics.median(launched)
    text = f"clock {told * 1e3:.3f} ms, events {true * 1e3:.3f} ms, launches alone {alone * 1e3:.3f} ms"
    return abs(told / true - 1) <= 0.01, text


def fp32_is_not_tf32() -> Check:
    """1024.5 has one bit more than TF32 keeps: with the switches off it survives a product, with them on it is 1025
    or 1024."""
    x = torch.full((16, 16), 0.0, device="cuda")
    x[0, 0] = 1024.5
    eye = torch.eye(16, device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = False
    off = float((x @ eye)[0, 0])
    torch.backends.cuda.matmul.allow_tf32 = True
    on = float((x @ eye)[0, 0])
    torch.backends.cuda.matmul.allow_tf32 = False
    return off == 1024.5, f"off {off}, on {on}"


def dtypes_and_updates() -> Check:
    """Autocast computes in bf16 and keeps fp32 parameters; bf16 parameters of 1.0 lose an update of 6e-4."""
    model, _, _ = training()
    inputs = torch.randn(8, WIDTH, device="cuda")
    with DtypeWatch(model) as watch, torch.autocast("cuda", dtype=torch.bfloat16):
        model(inputs).float().sum().backward()
    pure = nn.Linear(64, 1, bias=False).cuda().bfloat16()
    nn.init.ones_(pure.weight)
    optimizer = torch.optim.SGD(pure.parameters(), lr=6e-4)
    with UpdateWatch(pure, optimizer) as updates:
        pure(torch.ones(1, 64, device="cuda", dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    table = watch.table
    held = table.leaks("bfloat16") == [] and set(table.parameters) == {"float32"} and updates.lost_share == 1.0
    return held, f"products {table.products}, lost share {updates.lost_share}"


def first_nan() -> Check:
    """The module that makes a NaN is named."""

    class Spoil(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / (x * 0)

    model = nn.Sequential(nn.Linear(8, 8), Spoil(), nn.Linear(8, 8)).cuda()
    with FiniteWatch(model) as watch:
        watch.begin_step(1)
        model(torch.ones(1, 8, device="cuda"))
    return bool(watch.events) and watch.events[0].module == "1", str(watch.events)


def out_of_memory_is_told() -> Check:
    """More than the device has is recognised for what it is."""
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.empty(2 * total, dtype=torch.uint8, device="cuda")
    except RuntimeError as error:
        found = is_out_of_memory(error)
        return found is not None, str(found and found.text)[:100]
    return False, "nothing was raised"


CHECKS = (
    kinds_in_closed_form,
    counted_is_allocated,
    step_time,
    fp32_is_not_tf32,
    dtypes_and_updates,
    first_nan,
    out_of_memory_is_told,
)


def main() -> int:
    """Run every check; one that raises has failed and does not stop the others."""
    print(describe("torch"))
    if not torch.cuda.is_available():
        print("no CUDA or ROCm device is visible: nothing was checked")
        return 2
    print(torch.cuda.get_device_name(0))
    failed = 0
    for check in CHECKS:
        torch.cuda.empty_cache()
        try:
            held, text = check()
        except Exception as error:
            held, text = False, f"{type(error).__name__}: {error}"
        failed += not held
        print(f"{'PASS' if held else 'FAIL'} {check.__name__}: {text}")
    print(f"{len(CHECKS) - failed} of {len(CHECKS)} passed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
