"""Phases of `numerics` on activation checkpointing: the run's own steps with one mode, timed, then their memory.

One process a mode, so that each starts from a clean allocator. Leaves fingerprints by which the modes can be told
to compute the same: losses, gradient norms, parameters, and the state of every random generator after the last step.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import torch
from torch import Tensor

from pilotkit.meter.statistics import summarize
from pilotkit.train.seeding import random_state
from pilotkit.worker.build import build
from pilotkit.worker.curves import constant_rate
from pilotkit.worker.phases.measure import memory_metrics
from pilotkit.worker.session import Session
from pilotkit.worker.steps import run_timed_steps


def recompute(session: Session, *, mode: str) -> dict[str, Any]:
    """Warm up, count steps, then count the memory of one more."""
    config = constant_rate(session.config, precision=session.config.precision, mode=mode)
    session = dataclasses.replace(session, config=config)
    built = build(session, strategy="single", longest_rows=True)
    steps = run_timed_steps(
        session,
        built,
        num_warmup_steps=config.measure.num_warmup_steps,
        # Not until it has settled, as elsewhere: the modes are compared step by step and have to take equally many.
        max_warmup_steps=config.measure.num_warmup_steps,
        num_measured_steps=config.numerics.num_timed_steps,
        label=mode,
    )
    times = summarize(steps.step_seconds)
    fingerprints: dict[str, Any] = {
        "losses": [result.loss for result in steps.results],
        "grad_norms": [result.grad_norm for result in steps.results],
        "parameters": _digest(built.trainer.model.state_dict()),
        "random_states": _digest(random_state(session.device.torch_device)),
    }
    memory = memory_metrics(session, built)
    built.close()
    metrics: dict[str, float] = {
        "step_seconds": times.median,
        "step_stddev_seconds": times.stddev,
        "step_spread": times.spread,
        **{name: memory[name] for name in ("peak_allocated_bytes", "peak_reserved_bytes") if name in memory},
    }
    return {"metrics": metrics, "steps": steps.step_seconds, "fingerprints": fingerprints}


def _digest(state: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name]
        digest.update(name.encode())
        if isinstance(value, Tensor):
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()
