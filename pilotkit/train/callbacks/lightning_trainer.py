"""A callback for Lightning's Trainer: its steps as a RunTrace. Needs lightning.

order = asked()
saver = ModelCheckpoint(order.checkpoints, every_n_train_steps=order.save_every_steps, save_last=True)
Trainer(max_steps=order.num_steps, callbacks=[saver, LightningTrace()]).fit(module, loader, ckpt_path=...)
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback

from pilotkit.train.run_trace import RunTrace


class LightningTrace(Callback):
    """Traces every optimizer step of automatic optimization with one optimizer."""

    def __init__(self) -> None:
        self._trace: RunTrace | None = None
        self._steps_done = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        self._trace = RunTrace(
            pl_module,
            trainer.optimizers[0],
            scheduler=schedulers[0] if schedulers else None,
            scaler=getattr(trainer.precision_plugin, "scaler", None),
        )
        self._steps_done = trainer.global_step
        self._trace.resumed(trainer.global_step)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        assert self._trace is not None
        self._trace.batch(batch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert self._trace is not None
        if trainer.global_step != self._steps_done:
            self._steps_done = trainer.global_step
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            self._trace.step(trainer.global_step, loss=loss)
