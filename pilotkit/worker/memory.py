"""Memory of the intended run on one device, phase by phase: the largest peak decides whether it fits.

Called by `measure` once its steps are timed: counting live tensors slows a step down. On an accelerator peaks are the
allocator's, on the CPU they are counted; what the peak consists of is counted on both. Of a compiled step only what
lives through all of it is told apart: no operator returns the rest, and the same step uncompiled is another one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from pilotkit.config.load import dump
from pilotkit.meter.allocations import peak_growth
from pilotkit.meter.breakdown import Breakdown, MemoryBreakdown
from pilotkit.meter.memory import LiveTensorTracker
from pilotkit.train import checkpoint
from pilotkit.worker.build import Built
from pilotkit.worker.session import Session

CHECKPOINT_NAME = "measure"
NUM_GROWTH_BATCHES = 3
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
COUNTED, ALLOCATIONS, ALLOCATOR = "live tensors", "allocations", "caching allocator"
LASTING = ("parameters", "optimizer_state", "buffers")
GROWTH_SHARE = 0.01
"""A peak that rises by more than this share over a whole evaluation is told: what is kept of a batch may be small."""


def measure_phases(session: Session, built: Built) -> tuple[dict[str, float], dict[str, Any]]:
    """Metrics and details. Peaks, bytes: the first step, a later step, evaluation, saving a checkpoint."""
    trainer = built.trainer
    # An optimizer without state is what the first step starts with: its state appears at the end of that step.
    trainer.optimizer.state.clear()
    first = _peak(session, built, trainer.train_step)
    device_type = session.device.torch_device.type
    depth = session.config.measure.module_depth
    breakdown = _breakdown(built, depth=depth, device_type=device_type, compiled=session.config.train.compile)
    counted = peaks_by(session) == COUNTED
    steady = float(breakdown.peak_bytes) if counted else _peak(session, built, trainer.train_step)
    peaks = {"first step": first, "steps": steady}
    one = _peak(session, built, lambda: trainer.evaluate(1))
    several = _peak(session, built, lambda: trainer.evaluate(NUM_GROWTH_BATCHES))
    peaks["evaluation"] = max(one, several)
    if session.config.measure.checkpoint_peak:
        peaks["checkpoint save"] = _peak(session, built, lambda: _save(session, built))
    deciding = max(peaks, key=lambda phase: peaks[phase])
    growth = max(several - one, 0.0) / (NUM_GROWTH_BATCHES - 1)
    metrics = {f"peak_{kind}_bytes": float(size) for kind, size in breakdown.kinds.items()}
    metrics |= {f"{phase.replace(' ', '_')}_peak_bytes": peak for phase, peak in peaks.items() if phase != "steps"}
    metrics["largest_peak_bytes"] = peaks[deciding]
    metrics["eval_growth_bytes"] = growth
    if not counted:
        metrics["peak_unseen_bytes"] = steady - breakdown.peak_bytes
    details = {
        "deciding_phase": deciding,
        "breakdown": asdict(breakdown),
        "peaks_by": peaks_by(session),
        "eval_grows": growth * session.config.train.num_eval_batches > GROWTH_SHARE * peaks["evaluation"],
        "allocator_settings": _allocator_settings(),
    }
    return metrics, details


def _allocator_settings() -> str:
    """What an accelerator's caching allocator was told at its start; torch takes the first of these that is set."""
    return next((os.environ[name] for name in ALLOCATOR_VARIABLES if os.environ.get(name)), "")


def _breakdown(built: Built, *, depth: int, device_type: str, compiled: bool) -> Breakdown:
    """Of one step; of a compiled one, of what is there before it and after it."""
    watch = MemoryBreakdown(built.trainer.model, built.trainer.optimizer, depth=depth, device_type=device_type)
    with watch:
        if not compiled:
            built.trainer.train_step()
    found = watch.result()
    if compiled:
        found = replace(found, kinds={kind: size for kind, size in found.kinds.items() if kind in LASTING})
    return found


def peaks_by(session: Session) -> str:
    """What the peaks of this run are read from."""
    if session.device.memory().peak_allocated_bytes is not None:
        return ALLOCATOR
    return ALLOCATIONS if session.config.train.compile else COUNTED


def counted_peak(session: Session, built: Built, work: Callable[[], object]) -> int:
    """Most bytes that tensors take at once during `work`, on a processor."""
    tracker = LiveTensorTracker()
    tracker.track(built.trainer.model, built.trainer.optimizer)
    if peaks_by(session) == ALLOCATIONS:
        return tracker.live_bytes + peak_growth(work)
    with tracker:
        work()
    return tracker.peak_bytes


def _peak(session: Session, built: Built, work: Callable[[], object]) -> float:
    device = session.device
    if peaks_by(session) != ALLOCATOR:
        return float(counted_peak(session, built, work))
    device.synchronize()
    device.reset_peak()
    work()
    device.synchronize()
    return float(device.memory().peak_allocated_bytes or 0)


def _save(session: Session, built: Built) -> None:
    saved = checkpoint.save(
        built.trainer, session.run_dir.checkpoints / CHECKPOINT_NAME, config_text=dump(session.config)
    )
    shutil.rmtree(saved.path)
