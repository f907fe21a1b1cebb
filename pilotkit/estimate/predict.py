"""One estimate from a workload and a shape: memory now, time beside it. The Python call behind `stage=estimate`.

    from pilotkit.estimate import predict

Called by the worker's phase and by notebooks. Returns plain data; knows no hardware option, so it says nothing of fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pilotkit.estimate.events import Trace
from pilotkit.estimate.memory import Peak, largest_by_moment, peaks, profile, static_bytes
from pilotkit.estimate.trace import trace_step
from pilotkit.estimate.workload import Workload

NOT_TRACED = (
    "the device context, library workspaces and communication buffers are not traced: they stand as overhead",
    "scratch memory inside one kernel is not traced",
)


@dataclass(frozen=True)
class Prediction:
    """Peaks of one rank, bytes, and the trace they come from."""

    trace: Trace
    peaks: dict[str, Peak]
    static: dict[str, int]
    notes: tuple[str, ...]

    @property
    def peak_allocated_bytes(self) -> int:
        """The highest of all steps and the evaluation: what has to fit."""
        return max(peak.num_bytes for peak in self.peaks.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the record: `metrics`, and `details` that the page draws."""
        steady = self.peaks["steady step"]
        metrics = {
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "first_step_peak_bytes": self.peaks["first step"].num_bytes,
            "steady_step_peak_bytes": steady.num_bytes,
            # A save copies nothing on the device: what stays between steps is there.
            "checkpoint_peak_bytes": sum(self.static.values()),
            **{f"{kind}_bytes": num_bytes for kind, num_bytes in self.static.items()},
        }
        if "evaluation" in self.peaks:
            metrics["evaluation_peak_bytes"] = self.peaks["evaluation"].num_bytes
        details = {
            "peaks": [
                {"step": name, "peak_bytes": peak.num_bytes, "where": peak.words, "kinds": peak.kinds}
                for name, peak in self.peaks.items()
            ],
            "peak_by_moment": largest_by_moment(self.trace, ("forward", "backward", "optimizer")),
            "memory_profile": profile(self.trace),
            "attention": self.trace.attention,
            "notes": list(self.notes),
        }
        return {"metrics": metrics, "details": details}


def predict(workload: Workload, *, micro_batch_size: int, seq_len: int) -> Prediction:
    """Trace one shape. Raises EstimateError for a model that cannot be traced."""
    trace = trace_step(workload, micro_batch_size=micro_batch_size, seq_len=seq_len)
    return Prediction(trace, peaks(trace), static_bytes(trace), tuple(_notes(workload)))


def _notes(workload: Workload) -> list[str]:
    notes = list(NOT_TRACED)
    if workload.strategy == "ddp":
        notes.append("DDP is one device's trace with a bucket byte for each gradient byte: modelled, not traced")
    notes.append(
        f"gradients are {'sharded' if workload.strategy in ('fsdp', 'hsdp') else 'whole'} between micro-batches"
        if workload.strategy not in ("fsdp", "hsdp") or workload.grad_accum_steps == 1
        else "between micro-batches FSDP keeps whole gradients, as pilotkit reduces them in the last one only"
    )
    return notes
