"""Modules and process groups without memory: what `trace` builds on. Nothing here allocates, sends or reads a weight.

Fake tensors carry shapes and dtypes on the device `cpu`; the `fake` process group answers every collective at once.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


@contextmanager
def fake_group(world_size: int) -> Iterator[None]:
    """A process group of `world_size` ranks in which this process is rank 0. None for one rank without sharding."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def quiet() -> Iterator[None]:
    """torch warns about what only matters for real tensors, data pointers of fake ones for example."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, `owner.name` is `value`: what a library does with real values, fake ones cannot do."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def nothing_packed() -> Iterator[None]:
    """transformers looks at the values of position numbers that it made itself: several sequences in a row need a mask,
    and a plain run does not. Of fake ones it assumes the mask; without it, attention takes the kernel of a real run."""
    masking: Any = sys.modules.get("transformers.masking_utils")
    if masking is None or not hasattr(masking, "find_packed_sequence_indices"):
        yield
        return
    with replaced(masking, "find_packed_sequence_indices", lambda _position_ids: None):
        yield


def fake_mode() -> FakeTensorMode:
    """A mode that stays one when modules are copied: a copied tensor takes its mode along, and two do not mix."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode.__deepcopy__ = lambda _memo: mode  # type: ignore[attr-defined]  # `copy` asks the object for it
    return mode


def build_fake(build_model: Callable[[], nn.Module], mode: FakeTensorMode, *, dtype: torch.dtype) -> nn.Module:
    """The model with fake parameters and buffers, floating ones in `dtype`, as `PrecisionPolicy.cast` would store them.

    What the factory made outside the mode (a tensor that was made at import, say) becomes fake too.
    """
    with mode, _no_truncated_draws():
        model = build_model()
        _replace_tensors(model, mode, dtype=dtype)
    return model


def _no_truncated_draws() -> AbstractContextManager[None]:
    """`trunc_normal_` draws again until every value lies in its bounds, and a fake tensor has none to look at."""
    return replaced(nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor)


def _replace_tensors(model: nn.Module, mode: FakeTensorMode, *, dtype: torch.dtype) -> None:
    """In place, one by one: `Module.to` swaps tensors, which fake ones refuse. A tied parameter stays one."""
    replaced: dict[int, torch.Tensor] = {}

    def replacement(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in replaced:
            fake: torch.Tensor = tensor if isinstance(tensor, FakeTensor) else mode.from_tensor(tensor.detach())
            if fake.is_floating_point() and fake.dtype != dtype:
                fake = fake.detach().to(dtype)
            if isinstance(tensor, nn.Parameter) and fake is not tensor:
                fake = nn.Parameter(fake.detach(), requires_grad=tensor.requires_grad)
            replaced[id(tensor)] = fake
        return replaced[id(tensor)]

    originals = []  # held, so that no identity is given to another tensor meanwhile
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    originals.append(tensor)
                    held[name] = replacement(tensor)  # type: ignore[assignment]  # two dicts, one loop
