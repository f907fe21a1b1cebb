"""A callback for Lightning's Trainer: its optimizer steps as a StepMeter's record. Needs lightning.

    Trainer(..., callbacks=[LightningMeter(tokens_per_step=8192)])

Micro-batches of gradient accumulation are one step together. A step in which a validation fell is left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from pilotkit.meter.callbacks.running_step import RunningStep
from pilotkit.meter.step_meter import StepMeter


class LightningMeter(Callback):
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
        self._steps_done = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps_done = trainer.global_step
        self._running.start()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._running.data_is_here()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step != self._steps_done:
            self._steps_done = trainer.global_step
            self._running.end()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._running.begin()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.result = self._running.finish()
