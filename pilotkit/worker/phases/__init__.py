"""The phases by name. A phase is a function of a session that returns the plain data of its result."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

from pilotkit.errors import PilotkitError
from pilotkit.records import atomic
from pilotkit.records.run_dir import RunDir
from pilotkit.worker.session import Session, open_session

Phase = Callable[..., dict[str, Any]]

# name -> (module in this room, function, keyword arguments)
PHASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "estimate": ("estimate", "estimate", {}),
    "estimate_measured": ("estimate", "estimate_measured", {}),
    "prove": ("prove", "train_and_save", {}),
    "prove_restore": ("prove", "restore_and_evaluate", {}),
    "measure": ("measure", "measure", {}),
    "numerics_reference": ("numerics", "reference", {}),
    "numerics_candidate": ("numerics", "candidate", {}),
    "numerics_none": ("recompute", "recompute", {"mode": "none"}),
    "numerics_full": ("recompute", "recompute", {"mode": "full"}),
    "numerics_selective": ("recompute", "recompute", {"mode": "selective"}),
    "pilot_single": ("pilot", "pilot", {"strategy": "single"}),
    "pilot_ddp": ("pilot", "pilot", {"strategy": "ddp"}),
    "pilot_fsdp": ("pilot", "pilot", {"strategy": "fsdp"}),
    "pilot_hsdp": ("pilot", "pilot", {"strategy": "hsdp"}),
    "restore_uninterrupted": ("restore", "run_without_stop", {}),
    "restore_repeated": ("restore", "run_without_stop", {}),
    "restore_before": ("restore", "run_and_save", {}),
    "restore_save_shapes": ("restore_shapes", "save_shapes", {}),
    "restore_load_shapes": ("restore_shapes", "load_shapes", {}),
    "restore_after": ("restore", "load_and_run", {}),
    "qualify": ("qualify", "qualify", {}),
    "qualify_ranks": ("qualify", "qualify_ranks", {}),
}
# They calculate: whatever the hardware option names, they need none of it.
WITHOUT_DEVICE = frozenset({"estimate", "estimate_measured"})


def run_phase(run_dir: RunDir, *, phase: str, rank: int) -> None:
    """Run one phase on this rank; rank 0 leaves the result. `name@4` is the phase `name`, in a folder of its own."""
    module_name, function_name, arguments = PHASES[phase.partition("@")[0]]
    function: Phase = getattr(importlib.import_module(f"{__name__}.{module_name}"), function_name)
    with open_session(run_dir, phase=phase, on_device=phase not in WITHOUT_DEVICE) as session:
        result = session.share(function(session, **arguments))
    # On each of several nodes one rank leaves it: each has a driver of its own, or all have the same folder.
    if rank == 0 or (session.node_rank is not None and session.local_rank == 0):
        _check_finite(result)
        atomic.write_json(run_dir.phase(phase).result, result)


def _check_finite(value: Any, name: str = "") -> None:
    """JSON has no NaN; say which number it is, such as the loss of an evaluation after the weights have diverged."""
    if isinstance(value, dict):
        for key, item in value.items():
            _check_finite(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_finite(item, f"{name}.{index}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise PilotkitError(f"{name} is {value}: the run left the range of numbers, often for a learning rate too high")


__all__ = ["PHASES", "Session", "run_phase"]
