"""Instruments for a training step: time, memory, FLOPs. Public API, usable alone in anybody's training script.

from pilotkit.meter import StepMeter

meter = StepMeter(tokens_per_step=8192)
for batch in loader:
    with meter.step():
        ...
meter.close()
"""

from pilotkit.meter.clock import StepClock
from pilotkit.meter.flops import count_step_flops, count_training_flops, mfu
from pilotkit.meter.memory import LiveTensorTracker
from pilotkit.meter.out_of_memory import OutOfMemory, is_out_of_memory
from pilotkit.meter.rss import peak_rss_bytes, reset_peak_rss
from pilotkit.meter.statistics import Summary, summarize
from pilotkit.meter.step_meter import StepMeter

__all__ = [
    "LiveTensorTracker",
    "OutOfMemory",
    "StepClock",
    "StepMeter",
    "Summary",
    "count_step_flops",
    "count_training_flops",
    "is_out_of_memory",
    "mfu",
    "peak_rss_bytes",
    "reset_peak_rss",
    "summarize",
]
