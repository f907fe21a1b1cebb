"""Instruments for a training step: time, memory, FLOPs. Public API, usable alone in anybody's training script.

from pilotkit.meter import StepMeter

meter = StepMeter(tokens_per_step=8192)
for batch in loader:
    with meter.step():
        ...
meter.close()
"""

from pilotkit.meter.allocations import peak_growth
from pilotkit.meter.breakdown import Breakdown, MemoryBreakdown
from pilotkit.meter.clock import StepClock
from pilotkit.meter.communication import Collective, Communication, profile_step, read_trace
from pilotkit.meter.compilation import Compilation, CompileWatch
from pilotkit.meter.dtypes import DtypeTable, DtypeWatch
from pilotkit.meter.finite import FiniteWatch, NonFinite
from pilotkit.meter.flops import count_executed_flops, count_step_flops, count_training_flops, mfu
from pilotkit.meter.memory import LiveTensorTracker
from pilotkit.meter.out_of_memory import OutOfMemory, is_out_of_memory
from pilotkit.meter.rss import peak_rss_bytes, reset_peak_rss
from pilotkit.meter.statistics import Summary, summarize
from pilotkit.meter.step_meter import StepMeter
from pilotkit.meter.updates import UpdateWatch

__all__ = [
    "Breakdown",
    "Collective",
    "Communication",
    "Compilation",
    "CompileWatch",
    "DtypeTable",
    "DtypeWatch",
    "FiniteWatch",
    "LiveTensorTracker",
    "MemoryBreakdown",
    "NonFinite",
    "OutOfMemory",
    "StepClock",
    "StepMeter",
    "Summary",
    "UpdateWatch",
    "count_executed_flops",
    "count_step_flops",
    "count_training_flops",
    "is_out_of_memory",
    "mfu",
    "peak_growth",
    "peak_rss_bytes",
    "profile_step",
    "read_trace",
    "reset_peak_rss",
    "summarize",
]
