"""Live bytes against sizes computed by hand, against torch's own tracker, and that nothing is kept alive."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from pilotkit.meter import LiveTensorTracker

FLOAT = 4  # bytes


def test_linear_and_adamw_by_hand() -> None:
    model, inputs = nn.Linear(64, 32), torch.randn(16, 64)
    weights, output = (64 * 32 + 32) * FLOAT, 16 * 32 * FLOAT
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tracker = LiveTensorTracker()
    tracker.track(model, optimizer, inputs)
    held = weights + 16 * 64 * FLOAT
    assert tracker.live_bytes == held
    with tracker:
        result = model(inputs)
        assert tracker.live_bytes == held + output
        loss = result.sum()
        loss.backward()
        # Gradients stay; of the temporaries only the loss, as we still have it.
        assert tracker.live_bytes == held + output + FLOAT + weights
        tracker.reset_peak()
        optimizer.step()
        # Two moments for each parameter, and a step counter for each of the two tensors.
        after_step = held + output + FLOAT + weights + 2 * weights + 2 * FLOAT
        assert tracker.live_bytes == after_step
        # torch divides and takes the root of the second moment of the weight outside the moment itself.
        assert tracker.peak_bytes == after_step + 2 * 64 * 32 * FLOAT
        optimizer.zero_grad()
        del result, loss
    assert tracker.live_bytes == held + 2 * weights + 2 * FLOAT
    del model, optimizer, inputs
    gc.collect()
    assert tracker.live_bytes == 0


def test_activations_kept_for_backward_are_live() -> None:
    x = torch.randn(1000, requires_grad=True)
    tracker = LiveTensorTracker()
    with tracker:
        y = x.exp().exp().sum()  # both results of exp are kept, the names for them are gone
        assert tracker.live_bytes == 2 * 1000 * FLOAT + FLOAT
        del y
        assert tracker.live_bytes == 0


def test_checkpointing_keeps_less() -> None:
    def peak(*, recompute: bool) -> int:
        layer = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Tanh()) for _ in range(6)))
        x = torch.randn(256, 32, requires_grad=True)
        tracker = LiveTensorTracker()
        with tracker:
            if recompute:
                for part in layer:
                    x = checkpoint(part, x, use_reentrant=False)
            else:
                x = layer(x)
            x.sum().backward()
        return tracker.peak_bytes

    assert peak(recompute=True) < peak(recompute=False)


def test_views_and_in_place_operators_are_free() -> None:
    tracker = LiveTensorTracker()
    with tracker:
        x = torch.zeros(100)
        views = [x.view(10, 10), x[5:], x.reshape(20, 5).t()]
        x += 1
        assert tracker.live_bytes == tracker.peak_bytes == 400
        del x
        assert tracker.live_bytes == 400  # the views still hold it
        del views
    assert (tracker.live_bytes, tracker.peak_bytes) == (0, 400)


def test_tied_parameters_count_once_and_what_is_no_tensor_is_passed_over() -> None:
    first, second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    second.weight = first.weight
    first.weight.grad = torch.zeros(8, 8)
    tracker = LiveTensorTracker()
    batch = {"ids": torch.zeros(4, dtype=torch.int64), "name": "batch", "rows": [1, 2.0, None]}
    tracker.track(first, second, batch)
    assert tracker.live_bytes == 8 * 8 * FLOAT * 2 + 4 * 8


def test_nothing_is_kept_alive() -> None:
    tracker = LiveTensorTracker()
    with tracker:
        x = torch.ones(3)
        seen = weakref.ref(x)
        del x
        assert seen() is None
    assert tracker.live_bytes == 0


def test_an_error_inside_ends_the_watch() -> None:
    before = torch.UntypedStorage.resize_
    tracker = LiveTensorTracker()
    with pytest.raises(ValueError, match=r"^bad row$"), tracker:
        raise ValueError("bad row")
    assert torch.UntypedStorage.resize_ is before
    held = torch.ones(3)
    assert (tracker.live_bytes, held.sum().item()) == (0, 3.0)


def test_tensors_that_outlive_the_context_leave_the_count_when_they_go() -> None:
    tracker = LiveTensorTracker()
    with tracker:
        x = torch.ones(10)
    assert tracker.live_bytes == 40
    del x
    assert tracker.live_bytes == 0


def test_resized_storage() -> None:
    tracker = LiveTensorTracker()
    with tracker:
        x = torch.zeros(100)
        x.untyped_storage().resize_(0)
        assert tracker.live_bytes == 0
        x.untyped_storage().resize_(800)
        assert (tracker.live_bytes, tracker.peak_bytes) == (800, 800)


def test_sparse_gradient_counts_its_parts() -> None:
    embedding = nn.Embedding(1000, 8, sparse=True)
    tracker = LiveTensorTracker()
    with tracker:
        embedding(torch.tensor([3, 5])).sum().backward()
        gc.collect()
        grad = embedding.weight.grad
        assert grad is not None
        assert grad.is_sparse
        # Two rows of 8 floats. The index (two int64 in a 1 x 2 table) is the batch's own storage.
        assert tracker.live_bytes == 2 * 8 * FLOAT + 2 * 8


def test_other_devices_are_not_counted() -> None:
    tracker = LiveTensorTracker(device_type="meta")
    with tracker:
        held = [torch.ones(10), torch.ones(10, device="meta")]
        assert tracker.live_bytes == 40
        del held


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.pow(2).mean()


def test_peak_is_that_of_torchs_own_tracker() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor) -> None:
        model(inputs).backward()
        optimizer.step()
        optimizer.zero_grad()

    model, inputs = Model(), torch.randn(10, 4, 32)
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer, inputs)
    tracker, reference = LiveTensorTracker(), MemTracker()
    tracker.track(model, optimizer, inputs)
    with tracker:
        step(model, optimizer, inputs)
    reference.track_external(model, optimizer, inputs)
    with reference:
        step(model, optimizer, inputs)
    assert tracker.peak_bytes == reference.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]


def test_sharded_parameters() -> None:
    """FSDP2 wraps parameters (DTensor) and frees what it gathered by resizing storages."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = Model()
        num_bytes = sum(p.numel() for p in model.parameters()) * FLOAT
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
        inputs = torch.randn(10, 4, 32)
        tracker = LiveTensorTracker()
        tracker.track(model)
        assert tracker.live_bytes == num_bytes
        with tracker:
            model(inputs).backward()
            gc.collect()
            # Shards and their gradients stay; what was gathered for computing is given back.
            assert 2 * num_bytes <= tracker.live_bytes < 2.2 * num_bytes
            # At the top of a layer's backward its gathered parameters were there, too.
            assert tracker.peak_bytes > 2.5 * num_bytes
            model.zero_grad()
    finally:
        dist.destroy_process_group()


@pytest.mark.skipif(not hasattr(nn.functional, "linear_cross_entropy"), reason="torch has it from 2.13 on")
def test_what_torchs_fused_loss_holds_inside_is_counted() -> None:
    """Against every allocation of the processor's allocator, from torch's profiler: a chunk of logits is there."""
    x, weight = torch.randn(128, 32, requires_grad=True), torch.randn(96, 32, requires_grad=True)
    targets = torch.randint(96, (128,))
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=48, chunking_method=None)

    def loss() -> Tensor:
        found: Tensor = nn.functional.linear_cross_entropy(x, weight, targets, options=options)  # type: ignore[attr-defined]
        return found

    expected = loss()  # whatever is set up once is there
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        held = loss()
    live, peak = 0, 0
    for event in profiled.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    tracker = LiveTensorTracker()
    tracker.track(x, weight, targets)
    before = tracker.live_bytes
    with tracker:
        found = loss()
    assert tracker.peak_bytes - before == peak > 48 * 96 * 4
    assert torch.equal(found, expected)
    assert torch.equal(held, expected)
