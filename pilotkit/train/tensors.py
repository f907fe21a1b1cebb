"""The tensors of one training state by name: what a checkpoint holds, and how it goes back. Used by `checkpoint`.

Names are those of the plain model, `model.<parameter>` and `optimizer.<parameter>.<state>`, whatever DDP, FSDP, compile
or activation checkpointing wrapped around it. Nothing here reads or writes a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pilotkit.errors import CheckpointError

# The optimizer of a plain SGD has no state at all, which DCP's strict mode takes for a missing one;
# `check_names` has compared the names before.
_NOT_STRICT = dcp_state.StateDictOptions(strict=False)

# Segments that DDP, compile and activation checkpointing put into a name, in whatever order they wrap.
WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")


def plain_name(name: str) -> str:
    """The name in the model that nothing is wrapped around."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def collect_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The live tensors (no copies), sharded ones as DTensor. Gradients have to be cleared.

    Asking for optimizer state before the first step makes torch run a step with learning rate 0; what that leaves
    (a step counter of 1, moments of the weight decay) is set back to zero, where the first real step begins.
    """
    optimizer_state: Any = {}
    if not _is_stateless(optimizer):
        is_fresh = not any(optimizer.state.values())
        optimizer_state = dcp_state.get_optimizer_state_dict(model, optimizer)["state"]
        if is_fresh:
            _zero_state(optimizer)
    tensors: dict[str, Tensor] = {}
    for name, value in dcp_state.get_model_state_dict(model).items():
        if not isinstance(value, Tensor):
            raise CheckpointError(f"model state {name} is a {type(value).__name__}; only tensors can be saved")
        tensors[f"model.{name}"] = value
    for name, states in optimizer_state.items():
        for state, value in states.items():
            assert isinstance(value, Tensor), (name, state)
            tensors.update(_parts(f"optimizer.{name}.{state}", value))
    return tensors


def _parts(name: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A moment of 8 bits is several tensors (codes, scales, a table), each saved as what it is."""
    if _is_made_of_parts(value):
        for part in cast(Any, value).__tensor_flatten__()[0]:
            yield f"{name}.{part}", getattr(value, part)
    else:
        yield name, value


def _is_made_of_parts(value: Tensor) -> bool:
    return is_traceable_wrapper_subclass(value) and not isinstance(value, DTensor)


def _is_stateless(optimizer: torch.optim.Optimizer) -> bool:
    """Torch takes an optimizer that never has state for a fresh one, each time: gradients of zero, and a step."""
    return isinstance(optimizer, torch.optim.SGD) and not any(group["momentum"] for group in optimizer.param_groups)


@torch.no_grad()
def _zero_state(optimizer: torch.optim.Optimizer) -> None:
    for states in optimizer.state.values():
        for value in states.values():
            if isinstance(value, Tensor) and _is_made_of_parts(value):
                value.copy_(torch.zeros(value.shape, dtype=value.dtype, device=value.device))
            elif isinstance(value, Tensor):
                value.zero_()


def check_names(wanted: dict[str, Tensor], saved: Metadata, *, path: Path, allow_dtype_change: bool = False) -> None:
    """Raises CheckpointError listing every tensor that only one side has, or that has another shape or dtype."""
    stored = saved.state_dict_metadata
    problems = [f"saved but not known to this run: {name}" for name in sorted(stored.keys() - wanted.keys())]
    problems += [f"needed by this run but not saved: {name}" for name in sorted(wanted.keys() - stored.keys())]
    for name in sorted(wanted.keys() & stored.keys()):
        there, here = stored[name], wanted[name]
        if not isinstance(there, TensorStorageMetadata):
            problems.append(f"not a tensor: {name}")
        elif there.size != here.shape or (there.properties.dtype != here.dtype and not allow_dtype_change):
            saved_as = f"{tuple(there.size)} {there.properties.dtype}"
            problems.append(f"saved as {saved_as}, here {tuple(here.shape)} {here.dtype}: {name}")
    if problems:
        raise CheckpointError("\n".join([f"{path}: does not fit this run", *problems]))


def restore_tensors(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: dict[str, Tensor],
    *,
    param_groups: list[dict[str, Any]],
) -> None:
    """Put tensors and param groups (without their `params`) back through torch's own load functions and hooks."""
    prefix = "model."
    weights: dict[str, Any] = {
        name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)
    }
    dcp_state.set_model_state_dict(model, weights)
    if _is_stateless(optimizer):
        for own, group in zip(optimizer.param_groups, param_groups, strict=True):
            own.update(group)
        return
    current: Any = dcp_state.get_optimizer_state_dict(model, optimizer)
    groups = [
        {**group, "params": own["params"]} for group, own in zip(param_groups, current["param_groups"], strict=True)
    ]
    read = {param: dict(states) for param, states in optimizer.state.items()}
    dcp_state.set_optimizer_state_dict(
        model, optimizer, {"state": current["state"], "param_groups": groups}, options=_NOT_STRICT
    )
    _undo_casts(optimizer, read)


def _undo_casts(optimizer: torch.optim.Optimizer, read: dict[Tensor, dict[str, Any]]) -> None:
    """Torch casts every state to the dtype of its parameter (pytorch#43706), and moments of more bits lose some.

    `read` are the states that the checkpoint was read into, in the dtypes that `check_names` has compared.
    """
    for param, states in optimizer.state.items():
        for name, value in read.get(param, {}).items():
            if isinstance(value, Tensor) and states[name].dtype != value.dtype:
                states[name] = value
