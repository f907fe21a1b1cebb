"""What an estimate assumes or models instead of tracing it, in sentences. Called by `predict` and `points`."""

from __future__ import annotations

from typing import Any

from pilotkit.estimate.events import Trace
from pilotkit.estimate.workload import Workload
from pilotkit.train import adamw8bit

NOT_TRACED = (
    "context, library workspaces and communication buffers are not traced: they stand as overhead",
    "scratch memory inside one kernel is not traced",
)


def is_unsure(workload: Workload, trace: Trace) -> bool:
    """Whether torch may have none of the fused kernels of attention that were assumed: its builds for ROCm may lack
    them, and refuse shapes that others take (pytorch#112997)."""
    fused = any("flash" in kernel or "efficient" in kernel for kernel in trace.attention)
    return workload.attention == "auto" and workload.device_type == "rocm" and fused


def notes_of(workload: Workload, trace: Trace) -> tuple[str, ...]:
    """What is modelled or assumed and not traced, in sentences."""
    notes = list(NOT_TRACED)
    if workload.strategy == "ddp":
        notes.append("DDP is one device's trace with a bucket byte for each gradient byte: modelled, not traced")
    if workload.compile:
        notes += _compile_notes(workload, trace)
    if workload.strategy in ("fsdp", "hsdp") and workload.grad_accum_steps > 1:
        notes.append(
            "between micro-batches every rank keeps its share of the gradients: they are reduced in each of them "
            "(parallelism.sync_each_micro_batch)"
            if workload.sync_each_micro_batch
            else "between micro-batches every rank keeps whole gradients: they are reduced in the last one only"
        )
    notes.append(f"optimizer: {workload.optimizer['name']}, {workload.optimizer['implementation']}")
    if workload.optimizer["name"] == adamw8bit.NAME and workload.device_type != "cpu":
        notes.append(
            "the compiled update of adamw8bit is modelled: a float32 copy of both moments of one parameter at a time"
        )
    if trace.attention:
        notes.append(f"attention kernel assumed: {', '.join(trace.attention)}")
    if is_unsure(workload, trace):
        notes.append(
            "whether torch has that kernel on this device is not known here: with plain attention see "
            "plain_attention_peak_allocated_bytes; estimate.attention says which it is"
        )
    return tuple(notes)


def compile_details(trace: Trace) -> dict[str, Any]:
    """How a compiled run was estimated; empty for a run that is not."""
    if trace.not_compiled:
        return {"compiled": {"how": "uncompiled", "reason": trace.not_compiled}}
    if not trace.num_graphs:
        return {}
    return {"compiled": {"how": "modelled", "num_graphs": trace.num_graphs, "graph_breaks": trace.graph_breaks}}


def _compile_notes(workload: Workload, trace: Trace) -> list[str]:
    if trace.not_compiled:
        return [
            f"torch.compile does not take this model on fake tensors ({trace.not_compiled}): memory and time are those "
            "of the run uncompiled"
        ]
    graphs = "1 graph" if trace.num_graphs == 1 else f"{trace.num_graphs} graphs"
    notes = [
        f"torch.compile, {graphs}: modelled, not traced. What backward keeps is what torch's partitioner chose; what "
        "fused kernels hold, move and save of launches is a rule, not Inductor's own plan"
    ]
    if workload.activation_checkpointing != "none" and workload.compile_scope == "model":
        notes.append(
            "compiled as a whole with recomputation, real steps took up to 40 % more for activations than is modelled "
            "here (docs/estimate.md): leave that free, measure, or take train.compile_scope=blocks"
        )
    if trace.graph_breaks:
        notes.append(f"the graph is cut: {'; '.join(trace.graph_breaks)}")
    if workload.strategy == "ddp":
        notes.append("DDP cuts a compiled graph at its buckets, which is not in the estimate")
    return notes
