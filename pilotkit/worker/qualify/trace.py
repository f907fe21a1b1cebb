"""Which operators one real training step dispatches, each with a sample of its own arguments.

Called by phase `qualify`. Watches below autograd and autocast, so that backward's operators and the dtypes that really
reach the kernels are seen. Changes nothing of the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

# A larger sample is not kept: the reference would need it several times over in float64.
MAX_SAMPLE_NUMEL = 1 << 26


@dataclass
class Operator:
    """One operator in one combination of dtypes. `sample`: (args, kwargs) of the smallest call, None if too large."""

    overload: Any
    dtypes: tuple[str, ...]
    num_calls: int = 0
    numel: int = 0
    sample: tuple[Sequence[Any], Mapping[str, Any]] | None = None

    @property
    def name(self) -> str:
        """`aten::gelu`, without the overload."""
        return str(self.overload.name()).partition(".")[0]

    @property
    def title(self) -> str:
        """`aten::gelu bfloat16`: name and the dtypes of floating arguments."""
        return " ".join([self.name, ", ".join(dict.fromkeys(self.dtypes))]).strip()


@dataclass
class OperatorTrace(TorchDispatchMode):
    """Collects operators while it is active. `current` is the one that was called last, to name one that raises."""

    operators: dict[tuple[Any, ...], Operator] = field(default_factory=dict)
    current: str = ""

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        self.current = str(func.name()).partition(".")[0]
        leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        dtypes = tuple(str(leaf.dtype).removeprefix("torch.") for leaf in leaves if leaf.is_floating_point())
        numel = sum(leaf.numel() for leaf in leaves)
        key = (func, tuple(dict.fromkeys(dtypes)))
        found = self.operators.setdefault(key, Operator(func, dtypes))
        found.num_calls += 1
        if numel <= MAX_SAMPLE_NUMEL and (found.sample is None or numel < found.numel):
            found.numel = numel
            # A copy made before the call: an operator may write into its arguments.
            found.sample = tree_map_only(torch.Tensor, _copy, (args, kwargs))
        return func(*args, **kwargs)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Strides are kept where no two elements share memory: kernels choose by them."""
    return tensor.detach().clone()
