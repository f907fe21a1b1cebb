"""Run a training script as it is, and measure its optimizer steps: nothing in the script knows of it.

    torchrun ... -m pilotkit.meter.watch_script TOKENS_PER_STEP script.py [ARGUMENTS]

Started on every rank by `pilot.script` with `pilot.tokens_per_step`; leaves what a StepMeter leaves, where
PILOTKIT_METER_FILE says. A step is from the end of one `optimizer.step()` to the end of the next: waits for data, every
micro-batch, clipping, and also an evaluation or a save in between are in it. Of several optimizers the one that steps
first is followed. Everything else about the script, its end included, is as if python had started it.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from pilotkit.meter.callbacks.running_step import RunningStep
from pilotkit.meter.step_meter import StepMeter


class StepWatch:
    """Counts the steps of the first optimizer that steps in this process. Used once a process, as `install` is."""

    def __init__(self, *, tokens_per_step: int) -> None:
        self._running = RunningStep(lambda: StepMeter(tokens_per_step=tokens_per_step), tells_data=False)
        self._followed: Optimizer | None = None
        self._handle: Any = None

    def install(self) -> None:
        """From here on."""
        self._handle = register_optimizer_step_post_hook(self._after_step)
        self._running.start()

    def close(self) -> dict[str, Any] | None:
        """Write the file; its content. A step that is not done is not counted."""
        self._handle.remove()
        return self._running.finish()

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._followed is None:
            self._followed = optimizer
        if optimizer is self._followed:
            self._running.end()


def main(arguments: list[str]) -> None:
    """`arguments` are TOKENS_PER_STEP, the script, and its own. Whatever the script raises goes through."""
    tokens_per_step, script, *rest = arguments
    sys.argv = [script, *rest]
    # As python itself does: the folder of the script comes first, so that it finds the modules beside it.
    sys.path[0] = str(Path(script).resolve().parent)
    watch = StepWatch(tokens_per_step=int(tokens_per_step))
    watch.install()
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code in (None, 0):
            watch.close()
        raise
    watch.close()


if __name__ == "__main__":
    main(sys.argv[1:])
