"""`pilot(...)`: the records that one pilot of one hardware leaves, for plans on paper. Figures are the tests' own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pilotkit.decide.ledger import Given, build_ledger
from pilotkit.decide.study import Candidate
from pilotkit.records.record import Failure, Record
from pilotkit.units import GIB

MEMORY = {"a100": 79 * GIB, "h100": 79 * GIB, "h200": 139 * GIB, "mi300x": 191 * GIB}
DAY = 86400.0


@dataclass(frozen=True)
class Pilot:
    """One pilot: `days` is how long the steps of the whole run take on its 8 devices."""

    hardware: str = "a100"
    days: float = 5.0
    strategy: str = "fsdp"
    precision: str = "bf16_mixed"
    micro_batch_size: int = 4
    num_nodes: int = 1
    single_share: float = 1.0
    """Time of a step on one device, as a share of the time on all."""
    peak_gib: float = 60.0
    fits: bool = True
    save_seconds: float = 60.0
    restart_seconds: float = 120.0
    spread: float = 0.0
    supply: float | None = None
    global_batch_size: int | None = None
    num_steps: int = 10_000
    checkpoint_every_steps: int = 100
    lacks: tuple[str, ...] = ()
    qualified: bool | None = True
    """None: stage `qualify` was not run."""
    more: dict[str, Any] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        return {
            "hardware": {
                "name": self.hardware,
                "device_type": "rocm" if self.hardware == "mi300x" else "cuda",
                "device_count": 8,
                "memory_bytes": MEMORY[self.hardware],
                "power_watts": 400.0,
                "link_bandwidth_bytes_per_second": 300e9,
            },
            "parallelism": {"strategy": self.strategy, "num_nodes": self.num_nodes},
            "precision": {"name": self.precision},
            "model": {"name": "m"},
            "train": {
                "micro_batch_size": self.micro_batch_size,
                "seq_len": 1000,
                "global_batch_size": self.global_batch_size,
                "total_tokens": 10**9,
                "checkpoint_every_steps": self.checkpoint_every_steps,
            },
        }

    def records(self) -> dict[str, Record]:
        world = 8 * self.num_nodes
        step = self.days * DAY / self.num_steps
        steps = [step * (1 - self.spread), step, step * (1 + self.spread)]
        found = {"measure": self._measure(step), "pilot": self._pilot(step, steps, world)}
        found["restore"] = self._record(
            "restore",
            {
                "world_size": world, "checkpoint_save_seconds": self.save_seconds,
                "restart_seconds": self.restart_seconds, "checkpoint_bytes": 84e9,
            },
        )  # fmt: skip
        if self.qualified is not None:
            found["qualify"] = self._qualify(self.qualified)
        found = {stage: record for stage, record in found.items() if stage not in self.lacks}
        if "budget" not in self.lacks:
            found["budget"] = self._budget(found, world)
        return found

    def _qualify(self, fit: bool) -> Record:
        if fit:
            return self._record("qualify", {})
        problem = Failure("not qualified: operator aten::mm: differs by 0.2")
        return self._record("qualify", {}, status="mismatch", problem=problem)

    def _measure(self, step: float) -> Record:
        metrics = {"step_seconds": step * self.single_share, "tokens_per_step": 1000.0 * self.micro_batch_size}
        if not self.fits and self.strategy != "fsdp":
            return self._record("measure", {"peak_allocated_bytes": self.peak_gib * GIB}, status="does_not_fit")
        return self._record("measure", metrics)

    def _pilot(self, step: float, steps: list[float], world: int) -> Record:
        name = self.strategy
        if not self.fits:
            details: dict[str, Any] = {"strategies": {name: {"status": "does_not_fit"}}}
            metrics = {"world_size": float(world), "peak_allocated_bytes": self.peak_gib * GIB}
            return self._record("pilot", metrics, details=details, status="does_not_fit")
        metrics = {
            "world_size": float(world),
            f"{name}_step_seconds": step,
            f"{name}_peak_reserved_bytes": self.peak_gib * GIB,
            "single_step_seconds": step * self.single_share,
        }
        return self._record("pilot", metrics, details={"strategies": {name: {"status": "ok", "steps": steps}}})

    def _budget(self, found: dict[str, Record], world: int) -> Record:
        ledger = build_ledger(
            found,
            num_steps=self.num_steps,
            num_evals=0,
            num_eval_batches=0,
            num_checkpoints=math.ceil(self.num_steps / self.checkpoint_every_steps),
            strategy=self.strategy,
            world_size=world,
            given=Given(download_seconds=0.0, copy_out_seconds=0.0),
        )
        metrics = {
            "tokens_per_step": 1000.0 * (self.global_batch_size or self.micro_batch_size * world),
            "checkpoint_every_steps": float(self.checkpoint_every_steps),
        }
        if self.supply is not None:
            metrics["supply_tokens_per_second"] = self.supply
        return self._record("budget", metrics, details={"ledger": ledger.to_details()})

    def _record(self, stage: str, metrics: dict[str, float], **more: Any) -> Record:
        run_id = f"{stage}-{self.hardware}-{self.strategy}"
        defaults: dict[str, Any] = {"status": "ok", "config": self.config()}
        return Record(run_id, stage, started_at="2026-03-01", metrics=metrics, **{**defaults, **more})


MakePilot = Callable[..., Candidate]


@pytest.fixture
def pilot() -> MakePilot:
    """`pilot(hardware="h100", days=6.0, ...)` as a candidate of a study."""

    def make(**values: Any) -> Candidate:
        made = Pilot(**values)
        return Candidate(made.config(), made.records())

    return make
