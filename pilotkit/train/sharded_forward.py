"""What goes wrong in the forward of a sharded model, told in words that say what to change.

Called by the trainer around each forward of FSDP and HSDP: torch's own message names neither the module nor the reason,
and ranks that run different blocks exchange the wrong weights, or wait for each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.hooks import RemovableHandle

from pilotkit.errors import ConfigError, Problem
from pilotkit.train.ranks import can_differ, gather_objects

OTHERS = "single or ddp for this model"
_TWO_DTYPES = re.compile(r"same dtype|expected scalar type|should be the same|type mismatch|dtypes? of", re.IGNORECASE)
_END = "the end of its forward"


@contextmanager
def explained_dtypes(model: nn.Module, *, refusal: Callable[[str], ConfigError]) -> Iterator[None]:
    """Raises `refusal("<module> met two dtypes (<torch's words>)")` where an operator met two dtypes."""
    try:
        yield
    except RuntimeError as error:
        if not _TWO_DTYPES.search(str(error)):
            raise
        raise refusal(f"{_innermost_module(model, error)} met two dtypes ({str(error).splitlines()[0]})") from error


def refuse_sharded_dtypes(strategy: str, met: str) -> ConfigError:
    """Sharded parameters are gathered in the precision's compute dtype and no autocast runs, so a forward that casts
    its activations up (`h.float()`) hands a float32 input to a layer whose weight is not."""
    fix = (
        f"{met}: under sharding in mixed precision weights come in the compute dtype and autocast does not run, so "
        "cast its input back before it (h.to(layer.weight.dtype)), or take precision=fp32"
    )
    return ConfigError([Problem("parallelism.strategy", strategy, f"{OTHERS} in this precision", fix)])


def _innermost_module(model: nn.Module, error: BaseException) -> str:
    """The last module on the stack, by its dotted name."""
    names = {id(module): name or type(module).__name__ for name, module in model.named_modules()}
    found, trace = "the model", error.__traceback__
    while trace is not None:
        found = names.get(id(trace.tb_frame.f_locals.get("self")), found)
        trace = trace.tb_next
    return found


class SameBlocksOnEveryRank:
    """Context manager around the first forward: every rank has to run the same sharded groups, in the same order.

    Each is announced before it is gathered, and so is the end. Raises ConfigError on every rank where they differ.
    """

    def __init__(self, model: nn.Module, *, strategy: str) -> None:
        self._model = model
        self._strategy = strategy
        self._hooks: list[RemovableHandle] = []
        # A compiled forward is one graph, in which no rank takes a turn of its own, and into which no exchange fits.
        self._asks = can_differ(model) and getattr(model, "_compiled_call_impl", None) is None

    def __enter__(self) -> SameBlocksOnEveryRank:
        for name, module in self._model.named_modules():
            if self._asks and isinstance(module, FSDPModule):
                announce = partial(self._announce, name or "the model")
                hooked = cast(nn.Module, module)
                self._hooks.append(hooked.register_forward_pre_hook(announce, prepend=True))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        if kind is None and self._asks:
            self._announce(_END)

    def _announce(self, name: str, *_: Any) -> None:
        names = gather_objects(name)
        others = [(rank, other) for rank, other in enumerate(names) if other != names[0]]
        if others:
            rank, other = others[0]
            fix = (
                f"rank 0 came to {names[0]} where rank {rank} came to {other}: blocks that only some ranks run cannot "
                "be sharded one by one; name a list whose blocks every rank runs (model.blocks), or use ddp with "
                "parallelism.find_unused_parameters=true"
            )
            raise ConfigError([Problem("parallelism.strategy", self._strategy, OTHERS, fix, ("model.blocks",))])
