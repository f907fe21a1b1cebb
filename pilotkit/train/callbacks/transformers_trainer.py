"""A callback for `transformers.Trainer`: its steps as a RunTrace. Needs transformers.

order = asked()
arguments = TrainingArguments(order.checkpoints, max_steps=order.num_steps, save_steps=order.save_every_steps, ...)
trainer = Trainer(..., callbacks=[TrainerTrace()])
trainer.train(resume_from_checkpoint=get_last_checkpoint(order.checkpoints))
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from pilotkit.train.run_trace import RunTrace


class TrainerTrace(TrainerCallback):
    """Traces every optimizer step; a checkpoint of step n is there before the trace of step n + 1."""

    def __init__(self) -> None:
        self._trace: RunTrace | None = None
        self._is_first = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Hooks come first, before the first batch; what was loaded is complete when the first step begins.
        self._trace = RunTrace(kwargs["model"], kwargs["optimizer"], scheduler=kwargs["lr_scheduler"])
        self._is_first = True

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self._trace is not None
        if self._is_first:
            self._trace.resumed(state.global_step)
            self._is_first = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self._trace is not None
        self._trace.step(state.global_step)
