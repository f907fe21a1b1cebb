"""Steps told by the optimizer: for Accelerate's loops, and for any other that calls `optimizer.step()`.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with OptimizerMeter(optimizer, tokens_per_step=8192) as meter:
        ...                                   # the loop as it is
    meter.result

A step is from the end of one optimizer step to the end of the next: the wait for data, every micro-batch of gradient
accumulation and clipping are in it, and so is an evaluation in between, unless `pause` says that it comes. A step that
a loss scaler skips is part of the next. Needs no library but torch.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from pilotkit.meter.callbacks.running_step import RunningStep
from pilotkit.meter.step_meter import StepMeter


class OptimizerMeter:
    """`optimizer` may be wrapped, as Accelerate does. The other arguments are StepMeter's; `result` is its content."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        path: str | Path | None = None,
        *,
        tokens_per_step: int,
        num_warmup_steps: int | None = None,
    ) -> None:
        self.result: dict[str, Any] | None = None
        self._running = RunningStep(
            lambda: StepMeter(path, tokens_per_step=tokens_per_step, num_warmup_steps=num_warmup_steps),
            tells_data=False,
        )
        # Accelerate's wrapper takes part in every micro-batch; the optimizer inside only steps when it is due.
        self._optimizer: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
        self._handle: Any = None

    def __enter__(self) -> OptimizerMeter:
        self._handle = self._optimizer.register_step_post_hook(self._after_step)
        self._running.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.remove()
        self.result = self._running.finish()

    def pause(self) -> None:
        """Call it after an evaluation or a save: the step begins again now, and what lies before is not counted."""
        self._running.begin()

    def _after_step(self, *_: Any) -> None:
        self._running.end()
