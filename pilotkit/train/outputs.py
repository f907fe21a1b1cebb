"""Tensors that a module returns inside an object of its author's own, shown to torch.

A sharded module is gathered again when backward comes to its output, and DDP's search for unused parameters starts
there. Both look into tuples, lists and dictionaries alone: in a `SimpleNamespace` they find nothing, so that backward
reads weights that were given back (a fault of native code), and DDP takes every parameter for unused. Called by
`parallelism`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from pilotkit.meter.finite import tensors_in


class _Kept:
    """What the module really returned; torch does not look in here."""

    def __init__(self, output: Any) -> None:
        self.output = output


class Shown(NamedTuple):
    """Stands for an output while torch looks at it. Under DDP the trainer gets it, as DDP puts its own in place of
    tensors that it found; of the parts of an output it needs the loss alone."""

    loss: Tensor | None
    others: tuple[Tensor, ...]
    kept: _Kept


def show_output(module: nn.Module) -> None:
    """Call it before `module` is wrapped or sharded: hooks run in the order in which they came."""
    module.register_forward_hook(_show)


def take_back_output(module: nn.Module) -> None:
    """Call it after `module` was sharded: who calls it gets what it returned."""
    module.register_forward_hook(_take_back)


def _show(_module: nn.Module, _inputs: Any, output: Any) -> Shown | None:
    if not _may_hide(output):
        return None
    loss = getattr(output, "loss", None)
    loss = loss if isinstance(loss, Tensor) else None
    return Shown(loss, tuple(tensor for tensor in tensors_in(output) if tensor is not loss), _Kept(output))


def _take_back(_module: nn.Module, _inputs: Any, output: Any) -> Any:
    return output.kept.output if isinstance(output, Shown) else None


def _may_hide(value: Any) -> bool:
    """Dataclasses are among these: torch 2.13 looks into them, and 2.6 did not."""
    if value is None or isinstance(value, (Tensor, str, int, float)):
        return False
    if isinstance(value, (list, tuple)):
        return any(map(_may_hide, value))
    if isinstance(value, dict):
        return any(map(_may_hide, value.values()))
    return True
