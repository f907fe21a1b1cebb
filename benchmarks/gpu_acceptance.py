"""The checks of the meter on a CUDA or ROCm device: prints PASS or FAIL for each, and exits 1 when one fails.

    python benchmarks/gpu_acceptance.py | tee benchmarks/results/<date>-<device>.txt

Needs one device that nobody else uses, takes about a minute, starts no other process. Without a device it says so and
exits 2: nothing was checked, which is neither a pass nor a failure. A check that this device or this installation
has no part for (float8 products, NVML, AMD SMI) prints NOT RUN and why.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from machine import describe
from torch import Tensor, nn

from pilotkit.device import current_device
from pilotkit.errors import ConfigError
from pilotkit.meter import (
    DtypeWatch,
    FiniteWatch,
    LiveTensorTracker,
    MemoryBreakdown,
    StepClock,
    UpdateWatch,
    count_executed_flops,
    count_training_flops,
    is_out_of_memory,
)
from pilotkit.meter.device_use import own_pid, read_device_use
from pilotkit.train import activation_checkpointing, float8
from pilotkit.train.models import gpt
from pilotkit.train.precision import PrecisionPolicy

WIDTH, ROWS, LAYERS, FLOAT = 2048, 8192, 4, 4
DEVICE = "cuda"
"""Another one only in the rehearsal of checks that need no accelerator (tests/torch/meter/test_gpu_acceptance.py)."""
Check = tuple[bool, str]


class NotHere(Exception):
    """What is to be checked is not on this device, or not installed."""


def training(rows: int | None = None) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """Linear layers and AdamW: every size is known in closed form."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    inputs = torch.randn(rows or ROWS, WIDTH, device=DEVICE)

    def step() -> None:
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return model, optimizer, step


def decoder() -> Any:
    """A small one with tied embeddings, on the device."""
    torch.manual_seed(0)
    return gpt.build(
        vocab_size=256, num_layers=2, num_heads=4, hidden_size=256, max_seq_len=128, dropout=0.0, tie_embeddings=True
    ).to(DEVICE)


def kinds_in_closed_form() -> Check:
    """Parameters and optimizer state exact to the byte, activations within 1 %."""
    model, optimizer, step = training()
    step()
    with MemoryBreakdown(model, optimizer, device_type=DEVICE) as watch:
        step()
    kinds = watch.result().kinds
    weights, counters = LAYERS * WIDTH * WIDTH * FLOAT, LAYERS * FLOAT if DEVICE == "cpu" else 0
    # AdamW's step counters are on the CPU; the inputs are no activation, the results of all layers are.
    activations = LAYERS * ROWS * WIDTH * FLOAT
    held = kinds["parameters"] == weights and kinds["optimizer_state"] == 2 * weights + counters
    held = held and abs(kinds["activations"] / activations - 1) <= 0.01
    return held, f"{kinds}; expected {weights}, {2 * weights + counters}, {activations}"


def gradients_in_closed_form() -> Check:
    """With few rows the peak stands in the optimizer, where every gradient is there: exact to the byte."""
    model, optimizer, step = training(rows=8)
    step()
    with MemoryBreakdown(model, optimizer, device_type=DEVICE) as watch:
        step()
    found, weights = watch.result().kinds["gradients"], LAYERS * WIDTH * WIDTH * FLOAT
    return found == weights, f"{found}; expected {weights}"


def counted_is_allocated() -> Check:
    """Tensors counted operator by operator against the allocator's own peak, within 1 %."""
    model, optimizer, step = training()
    step()
    tracker = LiveTensorTracker(device_type=DEVICE)
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
    return abs(told / true - 1) <= 0.01 and alone < true / 2, text


def fp32_is_not_tf32() -> Check:
    """What a run leaves, whatever a module set before: a product and a convolution of 1024.5, which has one bit more
    than TF32 keeps, give 1024.5 under precision=fp32; under precision=tf32 a device that has it gives 1024 or 1025.

    Both are set as `worker.build` sets them, over a line as many a module has it, and over its newer form.
    """
    found: dict[str, list[float]] = {}
    for name in ("fp32", "tf32"):
        for setting in HOSTILE:
            setting()
            policy = PrecisionPolicy("float32", "float32", "float32", allow_tf32=name == "tf32")
            policy.apply_to_backend(torch.device(DEVICE))
            found.setdefault(name, []).extend(_of_one_bit_more())
    rounded = {1024.0, 1025.0} if _has_tf32() else {1024.5}
    held = set(found["fp32"]) == {1024.5} and set(found["tf32"]) <= rounded
    return held, f"{found}, expected 1024.5 and {sorted(rounded)}"


def _set_older() -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True


def _set_newer() -> None:
    backends: Any = torch.backends
    if hasattr(backends, "fp32_precision"):  # torch 2.9
        backends.fp32_precision = backends.cudnn.fp32_precision = "tf32"


HOSTILE = (_set_older, _set_newer)


def _of_one_bit_more() -> tuple[float, float]:
    """Of a product with the identity, and of a convolution by it."""
    x = torch.zeros(64, 64, device=DEVICE)
    x[0, 0] = 1024.5
    eye = torch.eye(64, device=DEVICE)
    convolved = nn.functional.conv2d(x.T.reshape(1, 64, 8, 8), eye.reshape(64, 64, 1, 1))
    return float((x @ eye)[0, 0]), float(convolved.abs().max())


def _has_tf32() -> bool:
    """Compute capability 8.0 and above. Of AMD's not asked for: whether a library takes it is its own choice."""
    return DEVICE == "cuda" and not torch.version.hip and torch.cuda.get_device_capability() >= (8, 0)


def dtypes_and_updates() -> Check:
    """Autocast computes in bf16 and keeps fp32 parameters; bf16 parameters of 1.0 lose an update of 6e-4."""
    model, _, _ = training()
    inputs = torch.randn(8, WIDTH, device=DEVICE)
    with DtypeWatch(model) as watch, torch.autocast(DEVICE, dtype=torch.bfloat16):
        model(inputs).float().sum().backward()
    pure = nn.Linear(64, 1, bias=False).to(DEVICE).bfloat16()
    nn.init.ones_(pure.weight)
    optimizer = torch.optim.SGD(pure.parameters(), lr=6e-4)
    with UpdateWatch(pure, optimizer) as updates:
        pure(torch.ones(1, 64, device=DEVICE, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    table = watch.table
    held = table.leaks("bfloat16") == [] and set(table.parameters) == {"float32"} and updates.lost_share == 1.0
    return held, f"products {table.products}, lost share {updates.lost_share}"


def first_nan() -> Check:
    """The module that makes a NaN is named."""

    class Spoil(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / (x * 0)

    model = nn.Sequential(nn.Linear(8, 8), Spoil(), nn.Linear(8, 8)).to(DEVICE)
    with FiniteWatch(model) as watch:
        watch.begin_step(1)
        model(torch.ones(1, 8, device=DEVICE))
    return bool(watch.events) and watch.events[0].module == "1", str(watch.events)


def out_of_memory_is_told() -> Check:
    """More than the device has is recognised for what it is."""
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.empty(2 * total, dtype=torch.uint8, device=DEVICE)
    except RuntimeError as error:
        found = is_out_of_memory(error)
        return found is not None, str(found and found.text)[:100]
    return False, "nothing was raised"


def who_is_on_it() -> Check:
    """NVML or AMD SMI against the driver's own count, within 1 GiB (contexts and reserves); this process is alone."""
    use = read_device_use(current_device())
    if use is None:
        raise NotHere("neither NVML nor AMD SMI is installed, or it does not answer for this device")
    free, total = torch.cuda.mem_get_info()
    held = abs(use.used_bytes - (total - free)) < 2**30
    others = use.others(own_pid=own_pid())
    text = f"{use.source}: used {use.used_bytes}, mem_get_info {total - free}; {use.describe() or 'no process'}"
    return held, f"{text}; {'own process not named (a container?)' if others is None else f'{len(others)} others'}"


def float8_products() -> Check:
    """torchao's layers really multiply in float8, leave the head alone, and stay within 5 % of the fp32 loss."""
    problem = current_device().float8_problem
    if problem:
        raise NotHere(problem)
    model = decoder()
    tokens = torch.randint(256, (4, 128), device=DEVICE)
    expected = float(model(input_ids=tokens, labels=tokens).loss.detach())
    try:
        float8.convert(model, recipe="tensorwise", blocks=model.blocks, emulate=False)
    except ConfigError as error:
        raise NotHere(error.problems[0].fix) from error
    with DtypeWatch(model) as watch, torch.autocast(DEVICE, dtype=torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
    in_float8 = [name for name in watch.table.products if name.startswith("float8")]
    held = bool(in_float8) and abs(float(loss.detach()) / expected - 1) < 0.05
    return held, f"products {watch.table.products}, loss {float(loss.detach()):.4f} against {expected:.4f} in fp32"


def recomputation_is_executed_and_not_needed() -> Check:
    """Full recomputation adds to the executed FLOPs and not to the model's."""
    tokens = torch.randint(256, (4, 128), device=DEVICE)
    counted = {}
    for mode in ("none", "full"):
        model = decoder()
        activation_checkpointing.apply(model, mode=mode, blocks=model.blocks)
        run = partial(model, input_ids=tokens, labels=tokens)
        counted[mode] = (
            count_training_flops(lambda run=run: run().loss),
            count_executed_flops(lambda run=run: run().loss.backward()),
        )
    held = counted["none"][0] == counted["full"][0] and counted["none"][1] < counted["full"][1]
    return held, f"needed and executed: {counted}"


CHECKS = (
    who_is_on_it,
    recomputation_is_executed_and_not_needed,
    float8_products,
    kinds_in_closed_form,
    gradients_in_closed_form,
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
    failed = not_run = 0
    for check in CHECKS:
        torch.cuda.empty_cache()
        try:
            held, text = check()
        except NotHere as reason:
            not_run += 1
            print(f"NOT RUN {check.__name__}: {reason}")
            continue
        except Exception as error:
            held, text = False, f"{type(error).__name__}: {error}"
        failed += not held
        print(f"{'PASS' if held else 'FAIL'} {check.__name__}: {text}")
    print(f"{len(CHECKS) - failed - not_run} of {len(CHECKS)} passed, {failed} failed, {not_run} not run")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
