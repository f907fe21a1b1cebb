"""A phase that is told to end saves first, and a later attempt goes on from there: weights, data, and what was counted.

Called by the phase `pilot`. On every rank: `resume` before the first step, `is_over` between any two, `joined` at the
end. Beside the checkpoint of step n, rank 0 writes `steps-<n>.json` with the times that were counted up to it, so that
the two always speak of the same steps. Never measures.
"""

from __future__ import annotations

import dataclasses
import json
import socket
from dataclasses import dataclass, field
from typing import Any

from pilotkit.config.load import dump
from pilotkit.records import atomic
from pilotkit.train.store import CheckpointStore, Retention, load_newest, save_step
from pilotkit.worker.build import Built
from pilotkit.worker.session import Session
from pilotkit.worker.steps import TimedSteps

# One to go back to should the newest turn out to be damaged.
RETENTION = Retention(keep_last=2)


@dataclass(frozen=True)
class Carried:
    """What earlier attempts have counted, seconds; `attempts` says which steps each of them took, and where."""

    warmup_seconds: list[float] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    section_seconds: dict[str, list[float]] = field(default_factory=dict)
    epoch_starts: list[bool] = field(default_factory=list)
    first_loss: float | None = None
    start_seconds: float = 0.0
    """From the start of the first attempt's processes to its first step."""
    attempts: list[dict[str, Any]] = field(default_factory=list)


class Attempt:
    """This start of a phase. A step that was saved is never taken again."""

    def __init__(self, session: Session, built: Built, *, every_steps: int | None) -> None:
        self._session = session
        self._built = built
        self._every_steps = every_steps
        self._store = CheckpointStore(session.run_dir.checkpoints / session.phase_dir.path.name)
        self._carried = Carried()
        self._first_step = 1
        self._start_seconds = 0.0

    def resume(self) -> int:
        """Restore the newest whole checkpoint of an earlier attempt; returns how many steps were counted before it."""
        loaded = load_newest(self._store, self._built.trainer)
        if loaded is not None:
            text = self._session.phase_dir.steps(loaded.step).read_text(encoding="utf-8")
            self._carried = Carried(**json.loads(text))
            self._first_step = loaded.step + 1
        self._start_seconds = self._carried.start_seconds if loaded else self._session.seconds_since_start()
        return len(self._carried.step_seconds)

    def is_over(self, steps: TimedSteps) -> bool:
        """Save when it is time to, or when the driver says so; in the second case the phase has to end."""
        is_told = self._session.is_told_to_stop()
        step = self._built.trainer.step
        if is_told or (self._every_steps is not None and step % self._every_steps == 0):
            self._save(steps)
        return is_told

    def joined(self, steps: TimedSteps) -> Carried:
        """The steps of all attempts, this one's last."""
        before, last = self._carried, self._built.trainer.step
        this = {
            "host": socket.gethostname(),
            "first_step": self._first_step,
            "last_step": last,
            "num_counted": len(steps.step_seconds),
        }
        sections = {*before.section_seconds, *steps.section_seconds}
        return Carried(
            before.warmup_seconds + steps.warmup_seconds,
            before.step_seconds + steps.step_seconds,
            {name: self._section(name, steps) for name in sorted(sections)},
            before.epoch_starts + steps.epoch_starts,
            steps.first.loss if before.first_loss is None else before.first_loss,
            self._start_seconds,
            [*before.attempts, {"number": 1 + len(before.attempts), **this}],
        )

    def _section(self, name: str, steps: TimedSteps) -> list[float]:
        before = self._carried
        earlier = before.section_seconds.get(name, [0.0] * len(before.step_seconds))
        return earlier + steps.section_seconds.get(name, [0.0] * len(steps.step_seconds))

    def _save(self, steps: TimedSteps) -> None:
        """The counts first: a checkpoint without them could not be gone on from."""
        session, trainer = self._session, self._built.trainer
        if session.rank == 0:
            atomic.write_json(session.phase_dir.steps(trainer.step), dataclasses.asdict(self.joined(steps)))
        save_step(self._store, trainer, config_text=dump(session.config), retention=RETENTION)
