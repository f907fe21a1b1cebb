"""Parameters that a step's backward did not reach: right where that is looked for, refused by name where it is not.

A plain loop leaves such a parameter alone. DDP waits for its gradient, for ever where another rank has one, and a
sharded group reduces what each rank has, so ranks that used different ones (experts without a row) would add up
gradients of different parameters. Called by the trainer, which tells it of every step on every rank.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from pilotkit.errors import ConfigError, Problem
from pilotkit.train.ranks import can_differ, gather_objects
from pilotkit.train.sharded_forward import OTHERS

SHARDED_PRICE = "one more exchange a step, and with mixed precision one reduction a micro-batch"
_TWO_DTYPES = "expects uniform gradient dtype"
_DDP_WAITS_FOR = re.compile(r"did not receive grad for rank \d+\s*:([\s\d]+)")


class UnusedParameters:
    """Of one model under one strategy. `check` is called after the last backward of a step, before the update."""

    def __init__(self, model: nn.Module, *, strategy: str, search: bool, adds_up_in_another_dtype: bool) -> None:
        """`adds_up_in_another_dtype`: gradients of several micro-batches are, and so differ from those of one."""
        self._model = model
        self._strategy = strategy
        self._search = search
        self._reached: set[str] | None = None
        self._usual: set[str] | None = None
        self._dtypes: dict[str, torch.dtype] = {}
        self._another_dtype = adds_up_in_another_dtype
        self.num_steps = 0
        self.missed: Counter[str] = Counter()
        self._trainable = {name: param for name, param in model.named_parameters() if param.requires_grad}
        if isinstance(model, FSDPModule) and can_differ(model):
            self._reached = set()
            reduce_unused(model, allowed=True)
            self._watch_sharded()

    @property
    def reduces_each_micro_batch(self) -> bool:
        """Whether no micro-batch may be added up before it is reduced: torch reduces one dtype at a time, and what only
        the last one reached has that of computation. Without the search this is only so until ranks have agreed."""
        return self._reached is not None and self._another_dtype and (self._search or self._usual is None)

    @contextmanager
    def explained(self, *, step: int) -> Iterator[None]:
        """Around each backward. Raises ConfigError where a sharded group has gradients of two dtypes."""
        before = set(self._reached or ())
        adds_up = not self.reduces_each_micro_batch
        try:
            yield
        except AssertionError as error:
            if self._reached is None or _TWO_DTYPES not in str(error):
                raise
            missed = self._trainable.keys() - before - (self._usual or set())
            if before and adds_up and missed:
                words = f"a gradient reaches {_shown(missed)} in some micro-batches and not in others (step {step})"
                raise _refusal(words, price=SHARDED_PRICE) from error
            raise self._own_dtype() from error

    def _own_dtype(self) -> ConfigError:
        """A module that casts its weights in its forward, as cautious routers do."""
        usual = Counter(self._dtypes.values()).most_common(1)[0][0]
        odd = {name: dtype for name, dtype in self._dtypes.items() if dtype != usual}
        dtypes = ", ".join(sorted({str(dtype) for dtype in odd.values()}))
        fix = (
            f"{_shown(odd)} got a gradient in {dtypes} where others have {usual}, as of a module that casts "
            "its weights in its forward; a sharded group reduces one dtype, so "
            "leave them in the one they come in, or take precision=fp32"
        )
        return ConfigError([Problem("parallelism.strategy", self._strategy, f"{OTHERS} in this precision", fix)])

    def check(self, *, step: int) -> None:
        """Raises ConfigError with the names where the search is off and something is amiss. `missed` counts, by name,
        in how many of `num_steps` steps a parameter got no gradient on this rank."""
        self.num_steps += 1
        self.missed.update(self._missed_here())
        if self._strategy == "ddp" and not self._search:
            self._check_ddp(step)
        elif self._reached is not None:
            self._check_sharded(self._reached, step)

    def _missed_here(self) -> list[str]:
        if self._reached is not None:
            return [name for name in self._trainable if name not in self._reached]
        return [name.removeprefix("module.") for name, param in self._trainable.items() if param.grad is None]

    def _check_ddp(self, step: int) -> None:
        """Two things leave DDP waiting: no gradient at all, and none in the last backward, the one that reduces."""
        missed = [name for name, param in self._trainable.items() if param.grad is None]
        missed = missed or self._not_in_the_last_backward()
        if missed:
            raise _refusal(f"no gradient reached {_shown(missed)} in step {step}", price="a graph walk a step")

    def _not_in_the_last_backward(self) -> list[str]:
        model = self._model
        try:
            model._check_reducer_finalized()  # type: ignore[operator]  # DDP's own method, which torch has no types for
        except RuntimeError as error:
            found = _DDP_WAITS_FOR.search(str(error))
            names = list(self._trainable)
            return [names[int(index)] for index in found[1].split()] if found else ["some parameters"]
        return []

    def _check_sharded(self, reached: set[str], step: int) -> None:
        """Without the search ranks agree in the first step, and each looks at itself in the following ones."""
        here = self._trainable.keys() - reached
        reached.clear()
        if self._search or self._usual is None:
            everywhere = gather_objects(sorted(here))
            nowhere = here.intersection(*everywhere)
            somewhere = {name for names in everywhere for name in names} - nowhere
            if somewhere and not self._search:
                words = f"in step {step} a gradient reached {_shown(somewhere)} on some ranks and not on others"
                raise _refusal(words, price=SHARDED_PRICE)
            self._usual = nowhere
            if nowhere and self._another_dtype and not self._search:
                # Zeros in their place would have the dtype of one micro-batch; they are left out on every rank.
                reduce_unused(self._model, allowed=False)
        elif here != self._usual:
            changed = here.symmetric_difference(self._usual)
            words = f"a gradient reaches {_shown(changed)} in some steps and not in others (step {step})"
            raise _refusal(words, price=SHARDED_PRICE)
        # Reduced as zeros, which the optimizer would decay and carry on: what no rank used has no gradient.
        for name in self._usual:
            self._trainable[name].grad = None

    def _watch_sharded(self) -> None:
        """Each group in turn is gathered once: a gradient first belongs to the whole parameter, which torch keeps."""
        seen: set[int] = set()
        for path, group in self._model.named_modules():
            if not isinstance(group, FSDPModule):
                continue
            group.unshard()
            for name, param in cast(nn.Module, group).named_parameters(prefix=path):
                if param.requires_grad and not isinstance(param, DTensor) and id(param) not in seen:
                    seen.add(id(param))
                    param.register_post_accumulate_grad_hook(partial(self._note, name))
            group.reshard()

    def _note(self, name: str, param: Tensor) -> None:
        assert self._reached is not None
        self._reached.add(name)
        if param.grad is not None:
            self._dtypes[name] = param.grad.dtype


def reduce_unused(model: nn.Module, *, allowed: bool) -> None:
    """Whether a sharded group reduces zeros for what a rank did not reach. Else ranks that used different parameters
    would reduce pieces of different length. Nothing before torch 2.13."""
    if hasattr(model, "set_reduce_scatter_unused_params"):
        cast(Any, model).set_reduce_scatter_unused_params(allowed)


def _shown(names: Iterable[str], *, most: int = 5) -> str:
    """The first few in the order of their names."""
    ordered = sorted(name.removeprefix("module.") for name in names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + more


def _refusal(words: str, *, price: str) -> ConfigError:
    # The flag first: to freeze what other ranks or steps do reach would change the training.
    fix = f"{words}; set this to true ({price}), or freeze what is never reached (requires_grad=False)"
    return ConfigError([Problem("parallelism.find_unused_parameters", False, "true for this model", fix)])
