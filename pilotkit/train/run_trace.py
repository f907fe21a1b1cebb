"""What a user's own script leaves for `stage=restore`: its state by component after every step, as digests.

    order = asked()                              # where to keep checkpoints, how many steps; None when nobody asked
    trace = RunTrace(model, optimizer, scheduler=scheduler)
    step = load_newest_of_mine()                 # 0 on a first start
    trace.resumed(step)
    while step < num_steps:
        loss = train_one_step()
        step += 1
        if step % save_every_steps == 0:
            save()
        trace.step(step, loss=loss)

Every rank makes one. Without PILOTKIT_TRACE_DIR it does nothing and costs nothing. Where PILOTKIT_KILL_AFTER_STEP says
so, `step` ends the process by SIGKILL, so that what was saved is all that is left. Changes nothing of the training.
"""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pilotkit.train.fingerprint import Parts, digest, parts_of
from pilotkit.train.seeding import random_state
from pilotkit.train.tensors import plain_name
from pilotkit.variables import (
    CHECKPOINTS_VARIABLE,
    KILL_VARIABLE,
    NUM_STEPS_VARIABLE,
    SAVE_EVERY_VARIABLE,
    TRACE_VARIABLE,
)


@dataclass(frozen=True)
class Asked:
    """What `stage=restore` wants of a script: this many optimizer steps in all, a checkpoint after every so many."""

    checkpoints: Path
    num_steps: int
    save_every_steps: int


def asked() -> Asked | None:
    """None when the script runs for itself."""
    folder = os.environ.get(CHECKPOINTS_VARIABLE)
    if folder is None:
        return None
    return Asked(Path(folder), int(os.environ[NUM_STEPS_VARIABLE]), int(os.environ[SAVE_EVERY_VARIABLE]))


class RunTrace:
    """One line of JSON an event in `trace-<rank>.jsonl`.

    `scheduler`, `scaler` and each of `others` have a `state_dict()`. The batches of a step are what `model` was called
    with while it trained, by digest.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        others: dict[str, Any] | None = None,
    ) -> None:
        folder = os.environ.get(TRACE_VARIABLE)
        self._path = None if folder is None else Path(folder) / f"trace-{os.environ.get('RANK', '0')}.jsonl"
        self._model, self._optimizer = model, optimizer
        self._stateful = {"scheduler": scheduler, "scaler": scaler, **(others or {})}
        self._batches: list[str] = []
        self._loss: float | None = None
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            model.register_forward_pre_hook(self._see_batch, with_kwargs=True)
            model.register_forward_hook(self._see_loss)

    def batch(self, value: Any) -> None:
        """A batch that the model's own `forward` is not called with; else nothing has to be told."""
        if self._path is not None:
            self._batches.append(digest(sorted(parts_of(value).items())))

    def resumed(self, step: int) -> None:
        """After loading, before the first step: `step` is 0 when there was nothing to load."""
        self._write("resumed", step)
        self._batches = []

    def step(self, step: int, *, loss: float | Tensor | None = None) -> None:
        """After optimizer step number `step` (from 1) and its save. `loss`: None is the model's own, if it has one."""
        if loss is not None:
            self._loss = float(loss)
        self._write("step", step)
        self._batches, self._loss = [], None
        if self._path is not None and os.environ.get(KILL_VARIABLE) == str(step):
            os.kill(os.getpid(), signal.SIGKILL)

    def _write(self, event: str, step: int) -> None:
        if self._path is None:
            return
        loss = self._loss if self._loss is None or math.isfinite(self._loss) else str(self._loss)
        line = {"event": event, "step": step, "loss": loss, "batches": self._batches, "state": self._state(step)}
        with open(self._path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def _state(self, step: int) -> dict[str, Parts]:
        names = {id(parameter): plain_name(name) for name, parameter in self._model.named_parameters()}
        tensors = {plain_name(name): digest(value) for name, value in self._model.state_dict(keep_vars=True).items()}
        optimizer: Parts = {}
        for index, group in enumerate(self._optimizer.param_groups):
            settings = {name: value for name, value in group.items() if name != "params"}
            optimizer |= {f"group {index}.{name}": text for name, text in parts_of(settings).items()}
            for number, parameter in enumerate(group["params"]):
                name = names.get(id(parameter), f"group {index}.{number}")
                state = self._optimizer.state.get(parameter, {})
                optimizer |= {f"{name}.{part}": text for part, text in parts_of(state).items()}
        device = next(self._model.parameters()).device
        return {
            "counters": parts_of({"step": step}),
            **{name: parts_of(one.state_dict()) if one is not None else {} for name, one in self._stateful.items()},
            "parameters": tensors,
            "optimizer": optimizer,
            "random states": parts_of(random_state(device)),
        }

    def _see_batch(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if module.training:
            self.batch({"args": args, "kwargs": kwargs})

    def _see_loss(self, module: nn.Module, args: Any, output: Any) -> None:
        """The last micro-batch's, of a model that computes its own: `output.loss`, or `output["loss"]`."""
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if module.training and isinstance(loss, Tensor) and loss.numel() == 1:
            self._loss = float(loss)
