"""The peak by kind and by module against sizes computed by hand; the parts always add up to it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pilotkit.meter import LiveTensorTracker, MemoryBreakdown
from pilotkit.meter.breakdown import OUTSIDE, Breakdown

FLOAT = 4
WIDTH, ROWS, LAYERS = 64, 2048, 4
WEIGHTS = LAYERS * (WIDTH * WIDTH + WIDTH) * FLOAT
ACTIVATION = ROWS * WIDTH * FLOAT


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor) -> None:
    model(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _linears() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)))


def _watch(model: nn.Module, *, amsgrad: bool = False, first: bool = False, **options: object) -> Breakdown:
    optimizer = torch.optim.AdamW(model.parameters(), amsgrad=amsgrad, foreach=False)
    inputs = torch.randn(ROWS, WIDTH)
    if not first:
        _step(model, optimizer, inputs)
    with MemoryBreakdown(model, optimizer, **options) as watch:  # type: ignore[arg-type]  # only `depth` is given
        _step(model, optimizer, inputs)
    return watch.result()


def test_linear_layers_and_adamw_in_closed_form() -> None:
    found = _watch(_linears())
    assert found.kinds["parameters"] == WEIGHTS
    # Two moments, and a step counter for each of the two tensors of a layer.
    assert found.kinds["optimizer_state"] == 2 * WEIGHTS + 2 * LAYERS * FLOAT
    # At the start of backward: what tanh gives in each layer, and what the last linear gave on the way is gone.
    assert found.kinds["activations"] == pytest.approx(LAYERS * ACTIVATION, rel=0.01)
    assert found.peak_bytes == sum(found.kinds.values())


def test_gradients_in_closed_form() -> None:
    """With few rows the peak is in the optimizer, where every gradient is there and no activation is."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    inputs = torch.randn(1, WIDTH)
    _step(model, optimizer, inputs)
    with MemoryBreakdown(model, optimizer) as watch:
        _step(model, optimizer, inputs)
    weights = 2 * (WIDTH * WIDTH + WIDTH) * FLOAT
    kinds = watch.result().kinds
    assert (kinds["parameters"], kinds["gradients"]) == (weights, weights)
    assert kinds["optimizer_state"] == 2 * weights + 4 * FLOAT


@pytest.mark.parametrize(("amsgrad", "moments"), [(False, 2), (True, 3)], ids=["adamw", "amsgrad"])
def test_state_of_trainable_parameters_only(amsgrad: bool, moments: int) -> None:
    model = _linears()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    trainable = WEIGHTS * (LAYERS - 1) // LAYERS
    state = _watch(model, amsgrad=amsgrad).kinds["optimizer_state"]
    assert state == moments * trainable + 2 * (LAYERS - 1) * FLOAT


def _tied() -> nn.Module:
    model = nn.Sequential(*_linears_without_bias())
    model[3].weight = model[1].weight
    return model


@pytest.mark.parametrize("rows", [ROWS, 1], ids=["peak before backward", "peak in the optimizer"])
@pytest.mark.parametrize("kind", ["sgd momentum", "tied", "bf16", "bf16 mixed"])
def test_other_optimizers_and_formats_in_closed_form(kind: str, rows: int) -> None:
    """Exact to the byte. SGD keeps one moment and no counter; a tied weight is one; of the copies of weights that
    autocast makes the first layer's is not kept, as its input wants no gradient."""
    weight, layer = WIDTH * WIDTH, rows * WIDTH
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    size = dtype.itemsize
    model = (_tied() if kind == "tied" else nn.Sequential(*_linears_without_bias())).to(dtype)
    distinct = LAYERS - 1 if kind == "tied" else LAYERS
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    if kind == "sgd momentum":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    inputs = torch.randn(rows, WIDTH, dtype=dtype)

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "bf16 mixed"):
            output = model(inputs)
        output.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with MemoryBreakdown(model, optimizer) as watch:
        step()
    kinds = watch.result().kinds
    weights = distinct * weight * size
    assert kinds["parameters"] == weights
    assert kinds["optimizer_state"] == (weights if kind == "sgd momentum" else 2 * weights + distinct * FLOAT)
    if rows == 1:
        assert kinds["gradients"] == weights
        return
    copies = layer * 2 + (LAYERS - 1) * weight * 2
    mixed = LAYERS * layer * 2 + copies
    assert kinds["activations"] == (mixed if kind == "bf16 mixed" else LAYERS * layer * size)


def _linears_without_bias() -> list[nn.Module]:
    return [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]


def test_the_first_step_has_no_state_at_its_peak() -> None:
    first, later = _watch(_linears(), first=True), _watch(_linears())
    assert first.kinds["optimizer_state"] == 0
    assert later.peak_bytes - first.peak_bytes == later.kinds["optimizer_state"]


def test_the_peak_is_the_trackers() -> None:
    model = _linears()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    inputs = torch.randn(ROWS, WIDTH)
    _step(model, optimizer, inputs)
    tracker = LiveTensorTracker()
    tracker.track(model, optimizer)
    with tracker:
        _step(model, optimizer, inputs)
    with MemoryBreakdown(model, optimizer) as watch:
        _step(model, optimizer, inputs)
    assert watch.result().peak_bytes == tracker.peak_bytes


def test_modules_by_depth() -> None:
    found = _watch(_linears(), depth=1)
    assert {"0", "1", "2", "3"} <= found.modules.keys() <= {"0", "1", "2", "3", "Sequential", OUTSIDE}
    for number in range(LAYERS):
        assert found.modules[str(number)]["parameters"] == WEIGHTS // LAYERS
        assert found.modules[str(number)]["activations"] == pytest.approx(ACTIVATION, rel=0.01)
    assert sum(size for kinds in found.modules.values() for size in kinds.values()) == found.peak_bytes
    assert "0.0" in _watch(_linears(), depth=2).modules


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = _linears()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def test_recomputation_keeps_the_inputs_of_layers() -> None:
    class Deep(nn.Module):
        """Eight results of tanh that backward needs, of which recomputation keeps one."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            x = self.linear(x)
            for _ in range(8):
                x = x.tanh()
            return x

    model = Recomputed()
    model.layers = nn.Sequential(*(Deep() for _ in range(LAYERS)))
    # The results of all layers but the last, which is being recomputed: its eight, and none of the others'.
    assert _watch(model).kinds["activations"] == pytest.approx((LAYERS - 1 + 8) * ACTIVATION, rel=0.01)
    assert _watch(model.layers).kinds["activations"] == pytest.approx(8 * LAYERS * ACTIVATION, rel=0.01)


def test_buffers_are_told_apart() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    assert _watch(model).kinds["buffers"] == 2 * WIDTH * FLOAT + 8
