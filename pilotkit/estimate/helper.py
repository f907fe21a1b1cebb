"""A second process that traces and replays beside this one, on another core. Made by the worker's phase.

Forked, so that torch is not imported again and the fake model is there; it has to be made before the first trace here,
as autograd refuses to work in a fork of a process in which it has worked. Whatever goes wrong in it is done again by
the caller, who meets the true error then. Ends with this process, also when that is killed.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import torch

from pilotkit.estimate.events import Trace
from pilotkit.estimate.model import FakeModel
from pilotkit.estimate.trace import trace_fake
from pilotkit.estimate.workload import Workload
from pilotkit.train.rows import die_with_the_rank

_adopted: list[FakeModel] = []
"""In the helper alone: the model that it was forked with."""


class Helper:
    """Context manager; `submit` hands over work, whose result is asked of the Future."""

    def __init__(self, source: FakeModel) -> None:
        context = multiprocessing.get_context("fork")
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_adopt, initargs=(source,))
        self.submit(int)  # forks now

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `function` there; it and its arguments are pickled."""
        try:
            with warnings.catch_warnings():
                # Python warns of a fork beside threads: here they only wait for the driver.
                warnings.simplefilter("ignore", DeprecationWarning)
                return self._pool.submit(function, *args, **kwargs)
        except RuntimeError as error:  # it has died
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed

    def trace(self, workload: Workload, **shape: Any) -> Future[Trace]:
        """`trace_fake` of the model that was there when this was made, under another workload of it."""
        changes = {
            field.name: getattr(workload, field.name)
            for field in dataclasses.fields(workload)
            if field.name not in ("build_model", "read_row")
        }
        return self.submit(_trace, changes, shape)


def _adopt(source: FakeModel) -> None:
    die_with_the_rank(0)
    torch.set_num_threads(1)  # threads of the parent are not here
    _adopted.append(source)


def _trace(changes: dict[str, Any], shape: dict[str, Any]) -> Trace:
    source = _adopted[0]
    return trace_fake(source.like(dataclasses.replace(source.workload, **changes)), **shape)
