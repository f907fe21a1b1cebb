"""The model that is traced: built once on fake tensors, copied for every trace. Made by `predict` and `trace`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from torch import Tensor, nn

from pilotkit.estimate.fake import build_fake, fake_mode, quiet
from pilotkit.estimate.problems import explained
from pilotkit.estimate.workload import Workload
from pilotkit.train.blocks import find_blocks
from pilotkit.train.precision import DTYPES

MAX_PERIOD = 6


class FakeModel:
    """The model on fake tensors, built once for any number of traces. Facts about it need no trace."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.mode = fake_mode()
        with quiet(), explained("building the model"):
            self._model = build_fake(workload.build_model, self.mode, dtype=DTYPES[workload.precision.param_dtype])
        self._blocks = blocks = find_blocks(self._model, path=workload.blocks)
        self.num_blocks = len(blocks) if blocks is not None else 0
        self.period = _period([_signature(block) for block in blocks or ()])
        """Blocks in the shortest run that repeats; 0 when none does."""
        self.num_params = sum(param.numel() for param in self._model.parameters())

    def like(self, workload: Workload) -> FakeModel:
        """The same model, to be traced as another workload of it."""
        other = copy.copy(self)
        other.workload = workload
        return other

    def copy(self, *, num_blocks: int | None) -> tuple[nn.Module, nn.ModuleList | None]:
        """A model to wrap and train, with its blocks. Only what is kept is copied: a short trace of a deep model costs
        what one of a shallow model does."""
        if self._blocks is None:
            with self.mode:
                return copy.deepcopy(self._model, _copied_tensors(self._model)), None
        with self.mode, _cut(self._blocks, num_blocks):
            memo = _copied_tensors(self._model)
            model = copy.deepcopy(self._model, memo)
        return model, memo[id(self._blocks)]


@contextmanager
def _cut(blocks: nn.ModuleList, num_blocks: int | None) -> Iterator[None]:
    """Inside, the list holds its first `num_blocks` only."""
    whole = blocks._modules
    if num_blocks is not None:
        blocks._modules = dict(islice(whole.items(), num_blocks))
    try:
        yield
    finally:
        blocks._modules = whole


def _copied_tensors(model: nn.Module) -> dict[int, Any]:
    """Copies of tensors that are no parameters, for `copy.deepcopy` to find: it would copy their storages."""
    held = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    return {id(tensor): tensor.detach().clone() for tensor in (*model.buffers(), *held)}


def _signature(block: nn.Module) -> tuple[object, ...]:
    """What makes two blocks alike: types, shapes, and plain settings other than the block's own number."""
    found: list[object] = []
    for name, module in block.named_modules():
        plain = {
            key: value
            for key, value in vars(module).items()
            if isinstance(value, (int, float, str)) and not key.endswith(("idx", "index", "layer_id"))
        }
        found.append((name, type(module), sorted(plain.items(), key=lambda item: item[0])))
    tensors = (*block.named_parameters(), *block.named_buffers())
    found += [(name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for name, tensor in tensors]
    return tuple(map(str, found))


def _period(signatures: list[tuple[object, ...]]) -> int:
    for period in range(1, MAX_PERIOD + 1):
        if len(signatures) % period == 0 and all(
            signature == signatures[index % period] for index, signature in enumerate(signatures)
        ):
            return period
    return 0
