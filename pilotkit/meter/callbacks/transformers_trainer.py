"""A callback for `transformers.Trainer`: its optimizer steps as a StepMeter's record. Needs transformers.

    Trainer(..., callbacks=[TrainerMeter(tokens_per_step=8192)])

Evaluation, saving and logging are not part of a step: a step in which they fell is left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from pilotkit.meter.callbacks.running_step import RunningStep
from pilotkit.meter.step_meter import StepMeter


class TrainerMeter(TrainerCallback):
    """`path`, `tokens_per_step` and `num_warmup_steps` are StepMeter's; `result` is its content after training.

    Each training that one callback sees is measured by itself; the file is that of the last.
    """

    def __init__(
        self, path: str | Path | None = None, *, tokens_per_step: int, num_warmup_steps: int | None = None
    ) -> None:
        self.result: dict[str, Any] | None = None
        self._running = RunningStep(
            lambda: StepMeter(path, tokens_per_step=tokens_per_step, num_warmup_steps=num_warmup_steps)
        )

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._running.start()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._running.data_is_here()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._running.end()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._running.begin()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._running.begin()

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._running.begin()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.result = self._running.finish()
